import io.delta.kernel.DataWriteContext;
import io.delta.kernel.Operation;
import io.delta.kernel.Scan;
import io.delta.kernel.Snapshot;
import io.delta.kernel.Transaction;
import io.delta.kernel.TransactionCommitResult;
import io.delta.kernel.data.ColumnVector;
import io.delta.kernel.data.ColumnarBatch;
import io.delta.kernel.data.FilteredColumnarBatch;
import io.delta.kernel.data.Row;
import io.delta.kernel.defaults.engine.DefaultEngine;
import io.delta.kernel.defaults.internal.data.DefaultColumnarBatch;
import io.delta.kernel.commit.Committer;
import io.delta.kernel.engine.Engine;
import io.delta.kernel.internal.InternalScanFileUtils;
import io.delta.kernel.internal.SnapshotImpl;
import io.delta.kernel.internal.actions.AddFile;
import io.delta.kernel.internal.actions.SingleAction;
import io.delta.kernel.internal.data.ScanStateRow;
import io.delta.kernel.internal.util.Utils;
import io.delta.kernel.types.DataType;
import io.delta.kernel.types.LongType;
import io.delta.kernel.types.StructType;
import io.delta.kernel.unitycatalog.UCCatalogManagedClient;
import io.delta.kernel.unitycatalog.UCCatalogManagedCommitter;
import io.delta.kernel.unitycatalog.UCTableIdentifier;
import io.delta.kernel.unitycatalog.adapters.MetadataAdapter;
import io.delta.kernel.unitycatalog.adapters.ProtocolAdapter;
import io.delta.kernel.utils.CloseableIterable;
import io.delta.kernel.utils.CloseableIterator;
import io.delta.kernel.utils.DataFileStatus;
import io.delta.kernel.utils.FileStatus;
import io.delta.storage.commit.TableIdentifier;
import io.delta.storage.commit.uccommitcoordinator.UCClient;
import io.delta.storage.commit.uccommitcoordinator.UCDeltaModels;
import io.delta.storage.commit.uccommitcoordinator.UCDeltaTokenBasedRestClient;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;

/**
 * Runs Delta Kernel through a Unity Catalog for tests. Each line of standard input is a command, and each line of standard output its answer:
 * `ok` and values, or the error. Words are separated by tabs. The first two arguments are the server's address and a token.
 */
public class Kernel {
  private static final StructType SCHEMA = new StructType().add("id", LongType.LONG);
  private static final String ENGINE = "cdfd-tests";

  private final Engine engine = DefaultEngine.create(new Configuration());
  private final UCDeltaTokenBasedRestClient rest;

  private Kernel(String address, String token) {
    rest =
        UCDeltaTokenBasedRestClient.create(
            address, Map.of("type", "static", "token", token), Map.of("cdfd", "1"), false, false, Configuration::new);
  }

  public static void main(String[] arguments) throws Exception {
    Kernel kernel = new Kernel(arguments[0], arguments[1]);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      try {
        System.out.println(kernel.run(line.split("\t")));
      } catch (Throwable error) {
        Throwable cause = error.getCause() == null ? error : error.getCause();
        System.out.println((error + " / " + cause).replace('\n', ' '));
      }
      System.out.flush();
    }
  }

  private String run(String[] words) throws Exception {
    switch (words[0]) {
      case "create":
        return create(words[1]);
      case "append":
        return append(new Place(words), ids(words[4]));
      case "remove":
        return remove(new Place(words), ids(words[4]));
      case "publish":
        load(new Place(words), Optional.empty()).publish(engine);
        return "ok";
      case "checkpoint":
        load(new Place(words), Optional.empty()).publish(engine).writeCheckpoint(engine);
        return "ok";
      case "rows":
        return "ok\t" + rows(load(new Place(words), Optional.of(Long.parseLong(words[4]))));
      default:
        return "unknown command " + words[0];
    }
  }

  /** A table: its id and location, and its names. */
  private static final class Place {
    final UCTableIdentifier name;
    final String id;
    final String location;

    Place(String[] words) {
      String[] parts = words[1].split("\\.");
      name = new UCTableIdentifier(parts[0], parts[1], parts[2]);
      id = words[2];
      location = words[3];
    }
  }

  /** A client of one table. The kernel's own forgets the name of a table that it loads, and the Delta REST API needs it for a commit. */
  private static final class NamedClient extends UCCatalogManagedClient {
    private final UCTableIdentifier name;

    NamedClient(UCClient rest, UCTableIdentifier name) {
      super(rest);
      this.name = name;
    }

    @Override
    protected Committer createUCCommitter(UCClient rest, String id, String location) {
      return new UCCatalogManagedCommitter(rest, id, location, name);
    }
  }

  private Snapshot load(Place place, Optional<Long> version) {
    return new NamedClient(rest, place.name)
        .loadSnapshot(engine, place.id, place.location, place.name, version, Optional.empty());
  }

  private String create(String name) throws Exception {
    String[] parts = name.split("\\.");
    TableIdentifier identifier = new TableIdentifier(new String[] {parts[0], parts[1]}, parts[2]);
    UCDeltaModels.StagingTableInfo staged = rest.createStagingTable(identifier);
    String id = staged.getTableId().toString();
    // Its committer would register the columns in the form of the older API.
    SnapshotImpl first =
        (SnapshotImpl)
            new UCCatalogManagedClient(rest)
                .buildCreateTableTransaction(id, staged.getLocation(), SCHEMA, ENGINE)
                .build(engine)
                .commit(engine, CloseableIterable.emptyIterable())
                .getPostCommitSnapshot()
                .get();
    rest.createTable(
        URI.create(staged.getLocation()),
        identifier,
        UCDeltaModels.TableType.MANAGED,
        new MetadataAdapter(first.getMetadata()),
        new ProtocolAdapter(first.getProtocol()),
        Collections.emptyList(),
        first.getTimestamp(engine));
    return "ok\t" + id + "\t" + staged.getLocation();
  }

  private String append(Place place, List<Long> ids) throws Exception {
    Snapshot snapshot = load(place, Optional.empty());
    Transaction transaction = snapshot.buildUpdateTableTransaction(ENGINE, Operation.WRITE).build(engine);
    Row state = transaction.getTransactionState(engine);
    ColumnarBatch batch = new DefaultColumnarBatch(ids.size(), SCHEMA, new ColumnVector[] {new Longs(ids)});
    CloseableIterator<FilteredColumnarBatch> data = one(new FilteredColumnarBatch(batch, Optional.empty()));
    CloseableIterator<FilteredColumnarBatch> physical =
        Transaction.transformLogicalData(engine, state, data, Collections.emptyMap());
    DataWriteContext context = Transaction.getWriteContext(engine, state, Collections.emptyMap());
    CloseableIterator<DataFileStatus> files =
        engine
            .getParquetHandler()
            .writeParquetFiles(context.getTargetDirectory(), physical, context.getStatisticsColumns());
    CloseableIterator<Row> actions = Transaction.generateAppendActions(engine, state, files, context);
    return commit(transaction, CloseableIterable.inMemoryIterable(actions));
  }

  /** Removes the files that have one of the ids. Their other rows are deleted, too. */
  private String remove(Place place, List<Long> ids) throws Exception {
    Snapshot snapshot = load(place, Optional.empty());
    Transaction transaction = snapshot.buildUpdateTableTransaction(ENGINE, Operation.MANUAL_UPDATE).build(engine);
    List<Row> actions = new ArrayList<>();
    Scan scan = snapshot.getScanBuilder().build();
    try (CloseableIterator<FilteredColumnarBatch> files = scan.getScanFiles(engine)) {
      while (files.hasNext()) {
        try (CloseableIterator<Row> rows = files.next().getRows()) {
          while (rows.hasNext()) {
            Row file = rows.next();
            if (!Collections.disjoint(read(scan, file), ids)) {
              AddFile added = new AddFile(file.getStruct(file.getSchema().indexOf("add")));
              actions.add(SingleAction.createRemoveFileSingleAction(added.toRemoveFileRow(true, Optional.of(1L))));
            }
          }
        }
      }
    }
    return commit(transaction, CloseableIterable.inMemoryIterable(Utils.toCloseableIterator(actions.iterator())));
  }

  private String commit(Transaction transaction, CloseableIterable<Row> actions) throws Exception {
    TransactionCommitResult result = transaction.commit(engine, actions);
    return "ok\t" + result.getVersion();
  }

  private String rows(Snapshot snapshot) throws Exception {
    List<Long> found = new ArrayList<>();
    Scan scan = snapshot.getScanBuilder().build();
    try (CloseableIterator<FilteredColumnarBatch> files = scan.getScanFiles(engine)) {
      while (files.hasNext()) {
        try (CloseableIterator<Row> rows = files.next().getRows()) {
          while (rows.hasNext()) {
            found.addAll(read(scan, rows.next()));
          }
        }
      }
    }
    Collections.sort(found);
    return found.stream().map(String::valueOf).collect(Collectors.joining(","));
  }

  private List<Long> read(Scan scan, Row file) throws Exception {
    Row state = scan.getScanState(engine);
    FileStatus status = InternalScanFileUtils.getAddFileStatus(file);
    StructType schema = ScanStateRow.getPhysicalDataReadSchema(state);
    CloseableIterator<ColumnarBatch> data =
        engine
            .getParquetHandler()
            .readParquetFiles(Utils.singletonCloseableIterator(status), schema, Optional.empty())
            .map(result -> result.getData());
    List<Long> ids = new ArrayList<>();
    try (CloseableIterator<FilteredColumnarBatch> batches = Scan.transformPhysicalData(engine, state, file, data)) {
      while (batches.hasNext()) {
        try (CloseableIterator<Row> rows = batches.next().getRows()) {
          while (rows.hasNext()) {
            ids.add(rows.next().getLong(0));
          }
        }
      }
    }
    return ids;
  }

  private static List<Long> ids(String text) {
    List<Long> found = new ArrayList<>();
    for (String each : text.split(",")) {
      found.add(Long.parseLong(each));
    }
    return found;
  }

  private static <T> CloseableIterator<T> one(T value) {
    return Utils.toCloseableIterator(Collections.singletonList(value).iterator());
  }

  /** A column of longs. */
  private static final class Longs implements ColumnVector {
    private final List<Long> values;

    Longs(List<Long> values) {
      this.values = values;
    }

    @Override
    public DataType getDataType() {
      return LongType.LONG;
    }

    @Override
    public int getSize() {
      return values.size();
    }

    @Override
    public void close() {}

    @Override
    public boolean isNullAt(int row) {
      return false;
    }

    @Override
    public long getLong(int row) {
      return values.get(row);
    }
  }
}
