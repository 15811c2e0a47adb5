import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.concurrent.Future;
import org.apache.bookkeeper.common.component.ComponentStarter;
import org.apache.bookkeeper.common.component.LifecycleComponent;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.server.Main;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.bookkeeper.util.LocalBookKeeper;
import org.apache.zookeeper.server.ServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/**
 * ZooKeeper and bookies in one process, for tests and examples: everything at one address and below
 * one folder. Ends with its standard input.
 *
 * <p>Arguments: the folder, the number of bookies, the address, settings of bookies as NAME=VALUE. Writes the port of
 * ZooKeeper on standard output when all is up, then carries out the lines of standard input, and writes
 * "done" after each: "add" or "remove" a bookie, "expire" the session whose number follows.
 *
 * <p>Or it is one bookie of such a service, until it is killed. Arguments: "bookie", its settings. Writes "ready" on
 * standard output when it is registered and answers.
 */
public final class BookKeeperService {
    private static final int TICK_MS = 500;

    public static void main(String[] arguments) {
        int code = 0;
        try {
            if (arguments[0].equals("bookie")) {
                beBookie(arguments);
            } else {
                serve(arguments);
            }
        } catch (Throwable error) {
            error.printStackTrace();
            code = 1;
        }
        Runtime.getRuntime().halt(code);
    }

    private static void serve(String[] arguments) throws Exception {
        File folder = new File(arguments[0]);
        String address = arguments[2];
        File log = new File(folder, "zk");
        ZooKeeperServer records = new ZooKeeperServer(log, log, TICK_MS);
        ServerCnxnFactory connections =
                ServerCnxnFactory.createFactory(new InetSocketAddress(address, 0), 1000);
        connections.startup(records);

        ServerConfiguration settings = settings(arguments, 3);
        int port = connections.getLocalPort();
        settings.setMetadataServiceUri("zk+hierarchical://" + address + ":" + port + "/ledgers");
        LocalBookKeeper bookies = new LocalBookKeeper(
                Integer.parseInt(arguments[1]), settings, new File(folder, "bookies").getPath(), true, "b",
                address, port);
        bookies.start();
        System.out.println(port);

        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            if (order.equals("add")) {
                bookies.addBookie();
            } else if (order.equals("remove")) {
                bookies.removeBookie();
            } else if (order.startsWith("expire ")) {
                records.closeSession(Long.parseLong(order.substring(7)));
            }
            System.out.println("done");
        }
    }

    private static ServerConfiguration settings(String[] arguments, int first) {
        ServerConfiguration settings = new ServerConfiguration();
        for (int at = first; at < arguments.length; at++) {
            String[] setting = arguments[at].split("=", 2);
            settings.setProperty(setting[0], setting[1]);
        }
        return settings;
    }

    private static void beBookie(String[] arguments) throws Exception {
        LifecycleComponent bookie = Main.buildBookieServer(new BookieConfiguration(settings(arguments, 1)));
        Future<Void> ended = ComponentStarter.startComponent(bookie);
        System.out.println("ready");
        ended.get();
    }
}
