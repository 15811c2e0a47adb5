/** The statuses of replies. Permanent numbers. */
final class Status {
    static final int OK = 0;
    /** Nothing was done, or it was only read; repeat it later. */
    static final int UNAVAILABLE = 1;
    /** The change was made, will be, or never is. */
    static final int UNKNOWN = 2;
    static final int FENCED = 3;
    static final int NO_LEDGER = 4;
    static final int NOT_ENOUGH_BOOKIES = 5;
    static final int BAD_VERSION = 6;
    static final int NO_RECORD = 7;
    static final int RECORD_EXISTS = 8;
    static final int NO_ENTRY = 9;
    static final int NOT_EMPTY = 10;
    static final int REFUSED = 11;
    static final int LEDGER_CLOSED = 12;
    static final int NO_HANDLE = 13;
    static final int DAMAGED = 14;

    private Status() {}
}
