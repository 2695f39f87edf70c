import java.io.BufferedWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.CloseableIterator;

/**
 * Runs a script of Flink SQL in this JVM. Statements end with a semicolon at the end of a line. The last one is a query, which ends.
 *
 * <p>Its changes are applied one after another, and the rows that are left are written to a file: a JSON array of texts for each.
 */
public final class FlinkRows {
    public static void main(String[] arguments) throws Exception {
        String script = Files.readString(Path.of(arguments[0]));
        Configuration configuration = new Configuration();
        configuration.setString("parallelism.default", "1");
        configuration.setString("table.local-time-zone", "UTC");
        configuration.setString("taskmanager.numberOfTaskSlots", "2");
        configuration.setString("taskmanager.memory.network.min", "8m");
        configuration.setString("taskmanager.memory.network.max", "8m");
        configuration.setString("taskmanager.memory.managed.size", "32m");
        configuration.setString("rest.bind-address", "127.0.0.1");
        TableEnvironment flink =
                TableEnvironment.create(
                        EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration).build());
        TableResult result = null;
        for (String statement : script.split(";\\s*\\n")) {
            if (!statement.isBlank()) {
                result = flink.executeSql(statement);
            }
        }
        Map<String, Integer> rows = new LinkedHashMap<>();
        try (CloseableIterator<Row> changes = result.collect()) {
            while (changes.hasNext()) {
                Row row = changes.next();
                boolean added = row.getKind() == RowKind.INSERT || row.getKind() == RowKind.UPDATE_AFTER;
                rows.merge(text(row), added ? 1 : -1, Integer::sum);
            }
        }
        try (BufferedWriter file = Files.newBufferedWriter(Path.of(arguments[1]), StandardCharsets.UTF_8)) {
            for (Map.Entry<String, Integer> row : rows.entrySet()) {
                if (row.getValue() != 0) {
                    file.write(row.getValue() + "\t" + row.getKey() + "\n");
                }
            }
        }
    }

    private static String text(Row row) {
        StringBuilder text = new StringBuilder("[");
        for (int place = 0; place < row.getArity(); place++) {
            text.append(place == 0 ? "" : ",").append(json(row.getField(place)));
        }
        return text.append("]").toString();
    }

    private static String json(Object value) {
        if (value == null) {
            return "null";
        }
        if (value instanceof byte[] bytes) {
            return quoted(HexFormat.of().formatHex(bytes));
        }
        if (value instanceof Object[] items) {
            return "[" + Stream.of(items).map(FlinkRows::json).collect(Collectors.joining(",")) + "]";
        }
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream()
                    .sorted(Comparator.comparing(entry -> entry.getKey().toString()))
                    .map(entry -> json(entry.getKey()) + ":" + json(entry.getValue()))
                    .collect(Collectors.joining(",", "{", "}"));
        }
        if (value instanceof Row row) {
            return row.getFieldNames(true).stream()
                    .map(name -> json(name) + ":" + json(row.getField(name)))
                    .collect(Collectors.joining(",", "{", "}"));
        }
        return quoted(value.toString());
    }

    private static String quoted(String text) {
        return "\"" + text.codePoints().mapToObj(FlinkRows::escaped).collect(Collectors.joining()) + "\"";
    }

    private static String escaped(int character) {
        if (character < 32 || character == '"' || character == '\\') {
            return String.format("\\u%04x", character);
        }
        return Character.toString(character);
    }
}
