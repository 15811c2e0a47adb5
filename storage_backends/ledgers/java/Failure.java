import java.util.concurrent.CompletionException;

/** What a call ends with if it fails. */
final class Failure extends Exception {
    private static final long serialVersionUID = 1;

    final int status;

    Failure(int status, String message) {
        super(message, null, false, false);
        this.status = status;
    }

    /** Without the wrapping of futures. */
    static Throwable causeOf(Throwable error) {
        return error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
    }
}
