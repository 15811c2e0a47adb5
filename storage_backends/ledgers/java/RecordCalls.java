import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.zookeeper.AsyncCallback;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/** Records, by ZooKeeper's client. A session that expired is replaced by another, without its records. */
final class RecordCalls {
    /** A version that no record has: "there is none". */
    private static final int MISSING = -1;

    private final String servers;
    private final int timeout;
    private final Map<Integer, Watch> watches = new ConcurrentHashMap<>();
    private volatile ZooKeeper client;

    RecordCalls(String servers, int timeout) throws Failure {
        this.servers = servers;
        this.timeout = timeout;
        CountDownLatch connected = new CountDownLatch(1);
        try {
            client = begin(connected);
            if (!connected.await(timeout, TimeUnit.MILLISECONDS)) {
                client.close();
                String why = "ZooKeeper at " + servers + " did not answer in " + timeout + " ms";
                throw new Failure(Status.UNAVAILABLE, why);
            }
        } catch (IOException | InterruptedException | IllegalArgumentException error) {
            throw new Failure(Status.UNAVAILABLE, "ZooKeeper at " + servers + ": " + error);
        }
    }

    private ZooKeeper begin(CountDownLatch connected) throws IOException {
        return new ZooKeeper(servers, timeout, event -> changed(event, connected));
    }

    private void changed(WatchedEvent event, CountDownLatch connected) {
        if (event.getState() == Watcher.Event.KeeperState.SyncConnected) {
            connected.countDown();
        }
        if (event.getState() != Watcher.Event.KeeperState.Expired) {
            return;
        }
        try {
            client = begin(new CountDownLatch(1));
        } catch (IOException error) {
            System.err.println("sidecar: no new session at ZooKeeper: " + error);
            Runtime.getRuntime().halt(1);
        }
        watches.values().forEach(watch -> watch.end(new Failure(Status.UNAVAILABLE, "the session expired")));
    }

    CompletableFuture<Answer> session() {
        ZooKeeper now = client;
        return CompletableFuture.completedFuture(
                new Answer().i64(now.getSessionId()).i32(now.getSessionTimeout()));
    }

    // --- calls --------------------------------------------------------------------------------------------

    /** Replies of one session come in the order of its requests, so the answer is as new as the sync. */
    CompletableFuture<Answer> load(String path) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        ZooKeeper session = client;
        session.sync(path, (code, synced, context) -> {
            if (code != KeeperException.Code.OK.intValue()) {
                answer.completeExceptionally(failure(code, path, Status.UNAVAILABLE));
            }
        }, null);
        session.getData(path, false, (code, asked, context, data, stat) -> {
            if (code == KeeperException.Code.OK.intValue()) {
                byte[] bytes = data == null ? new byte[0] : data;
                Answer found = new Answer().i64(stat.getVersion()).i64(stat.getEphemeralOwner());
                answer.complete(found.data(bytes));
            } else {
                answer.completeExceptionally(failure(code, path, Status.UNAVAILABLE));
            }
        }, null);
        return answer;
    }

    /** Missing parents are created with it, empty. */
    CompletableFuture<Answer> create(String path, byte[] data, boolean ephemeral) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        create(client, path, data, ephemeral ? CreateMode.EPHEMERAL : CreateMode.PERSISTENT, answer);
        return answer;
    }

    private void create(
            ZooKeeper session, String path, byte[] data, CreateMode mode, CompletableFuture<Answer> answer) {
        AsyncCallback.Create2Callback made = (code, asked, context, name, stat) -> {
            if (code == KeeperException.Code.OK.intValue()) {
                answer.complete(new Answer().i64(stat.getVersion()).i64(stat.getEphemeralOwner()));
            } else if (code == KeeperException.Code.NONODE.intValue() && path.lastIndexOf('/') > 0) {
                CompletableFuture<Answer> parent = new CompletableFuture<>();
                String above = path.substring(0, path.lastIndexOf('/'));
                create(session, above, new byte[0], CreateMode.PERSISTENT, parent);
                parent.whenComplete((ignored, error) -> {
                    if (error == null || ((Failure) error).status == Status.RECORD_EXISTS) {
                        create(session, path, data, mode, answer);
                    } else {
                        answer.completeExceptionally(error);
                    }
                });
            } else {
                answer.completeExceptionally(failure(code, path, Status.UNKNOWN));
            }
        };
        try {
            session.create(path, data, ZooDefs.Ids.OPEN_ACL_UNSAFE, mode, made, null);
        } catch (IllegalArgumentException error) {
            answer.completeExceptionally(new Failure(Status.REFUSED, error.getMessage()));
        }
    }

    CompletableFuture<Answer> replace(String path, byte[] data, int version) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        client.setData(path, data, version, (code, asked, context, stat) -> {
            if (code == KeeperException.Code.OK.intValue()) {
                answer.complete(new Answer().i64(stat.getVersion()));
            } else {
                answer.completeExceptionally(failure(code, path, Status.UNKNOWN));
            }
        }, null);
        return answer;
    }

    CompletableFuture<Answer> delete(String path, int version) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        AsyncCallback.VoidCallback deleted =
                (code, asked, context) -> ended(answer, code, path, Status.UNKNOWN);
        client.delete(path, version, deleted, null);
        return answer;
    }

    CompletableFuture<Answer> children(String path) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        AsyncCallback.ChildrenCallback listed = (code, asked, context, names) -> {
            if (code != KeeperException.Code.OK.intValue()) {
                answer.completeExceptionally(failure(code, path, Status.UNAVAILABLE));
                return;
            }
            Answer found = new Answer().i32(names.size());
            names.forEach(found::text);
            answer.complete(found);
        };
        ZooKeeper session = client;
        session.sync(path, (code, synced, context) -> {}, null);
        session.getChildren(path, false, listed, null);
        return answer;
    }

    /** A condition without a change goes the way of a change: a quorum answers it. */
    CompletableFuture<Answer> check(String path, int version) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        List<Op> condition = Arrays.asList(Op.check(path, version));
        AsyncCallback.MultiCallback checked =
                (code, asked, context, results) -> ended(answer, code, path, Status.UNAVAILABLE);
        client.multi(condition, checked, null);
        return answer;
    }

    private static void ended(CompletableFuture<Answer> answer, int code, String path, int doubt) {
        if (code == KeeperException.Code.OK.intValue()) {
            answer.complete(new Answer());
        } else {
            answer.completeExceptionally(failure(code, path, doubt));
        }
    }

    // --- watches ------------------------------------------------------------------------------------------

    /** Ends once the record has another version; {@link #MISSING} is that of a record that is not there. */
    CompletableFuture<Answer> watch(int id, String path, int version) {
        Watch watch = new Watch(path, version);
        watches.put(id, watch);
        watch.answer.whenComplete((answer, error) -> watches.remove(id));
        watch.look();
        return watch.answer;
    }

    CompletableFuture<Answer> unwatch(int id) {
        Watch watch = watches.get(id);
        if (watch != null) {
            watch.end(new Failure(Status.REFUSED, "given up"));
        }
        return CompletableFuture.completedFuture(new Answer());
    }

    private final class Watch implements Watcher {
        final CompletableFuture<Answer> answer = new CompletableFuture<>();
        private final String path;
        private final int version;
        private final ZooKeeper session = client;

        Watch(String path, int version) {
            this.path = path;
            this.version = version;
        }

        void look() {
            session.exists(path, this, (code, asked, context, stat) -> looked(code, stat), null);
        }

        private void looked(int code, Stat stat) {
            boolean missing = code == KeeperException.Code.NONODE.intValue();
            if (code != KeeperException.Code.OK.intValue() && !missing) {
                end(failure(code, path, Status.UNAVAILABLE));
            } else if ((missing ? MISSING : stat.getVersion()) != version) {
                answer.complete(new Answer());
            }
        }

        @Override
        public void process(WatchedEvent event) {
            // Without a type it is news of the connection, which restores the watch by itself.
            if (event.getType() != Watcher.Event.EventType.None && !answer.isDone()) {
                look();
            }
        }

        void end(Failure failure) {
            if (answer.completeExceptionally(failure)) {
                AsyncCallback.VoidCallback ignored = (code, asked, context) -> {};
                session.removeWatches(path, this, Watcher.WatcherType.Any, true, ignored, null);
            }
        }
    }

    // --- outcomes -----------------------------------------------------------------------------------------

    private static Failure failure(int code, String path, int doubt) {
        KeeperException.Code known = KeeperException.Code.get(code);
        return new Failure(status(known, doubt), "ZooKeeper: " + known + " for " + path);
    }

    private static int status(KeeperException.Code code, int doubt) {
        if (code == null) {
            return doubt;
        }
        switch (code) {
            case NONODE:
                return Status.NO_RECORD;
            case NODEEXISTS:
                return Status.RECORD_EXISTS;
            case BADVERSION:
                return Status.BAD_VERSION;
            case NOTEMPTY:
                return Status.NOT_EMPTY;
            case NOAUTH:
            case AUTHFAILED:
            case BADARGUMENTS:
            case NOCHILDRENFOREPHEMERALS:
            case INVALIDACL:
                return Status.REFUSED;
            default:
                return doubt;
        }
    }
}
