import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;
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

/** Records, by ZooKeeper's client. A session that expired is replaced by another. */
final class RecordCalls {
    private final String servers;
    private final int timeout;
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
                answer.complete(new Answer().i64(stat.getVersion()).data(bytes));
            } else {
                answer.completeExceptionally(failure(code, path, Status.UNAVAILABLE));
            }
        }, null);
        return answer;
    }

    /** Missing parents are created with it, empty. */
    CompletableFuture<Answer> create(String path, byte[] data) {
        CompletableFuture<Answer> answer = new CompletableFuture<>();
        create(client, path, data, answer);
        return answer;
    }

    private void create(ZooKeeper session, String path, byte[] data, CompletableFuture<Answer> answer) {
        AsyncCallback.Create2Callback made = (code, asked, context, name, stat) -> {
            if (code == KeeperException.Code.OK.intValue()) {
                answer.complete(new Answer().i64(stat.getVersion()));
            } else if (code == KeeperException.Code.NONODE.intValue() && path.lastIndexOf('/') > 0) {
                CompletableFuture<Answer> parent = new CompletableFuture<>();
                String above = path.substring(0, path.lastIndexOf('/'));
                create(session, above, new byte[0], parent);
                parent.whenComplete((ignored, error) -> {
                    if (error == null || ((Failure) error).status == Status.RECORD_EXISTS) {
                        create(session, path, data, answer);
                    } else {
                        answer.completeExceptionally(error);
                    }
                });
            } else {
                answer.completeExceptionally(failure(code, path, Status.UNKNOWN));
            }
        };
        try {
            session.create(path, data, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT, made, null);
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
            case INVALIDACL:
                return Status.REFUSED;
            default:
                return doubt;
        }
    }
}
