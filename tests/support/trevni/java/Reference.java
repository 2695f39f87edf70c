import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import org.apache.avro.Schema;
import org.apache.avro.file.DataFileReader;
import org.apache.avro.file.DataFileWriter;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericDatumWriter;
import org.apache.avro.generic.GenericRecord;
import org.apache.trevni.ColumnFileMetaData;
import org.apache.trevni.ColumnFileReader;
import org.apache.trevni.ColumnFileWriter;
import org.apache.trevni.ColumnMetaData;
import org.apache.trevni.ColumnValues;
import org.apache.trevni.ValueType;
import org.apache.trevni.avro.AvroColumnReader;
import org.apache.trevni.avro.AvroColumnWriter;

/**
 * Runs the reference implementation for tests and benchmarks. Each line of standard input is a command, and each line of standard
 * output its answer: `ok`, or the error. Words are separated by tabs.
 */
public class Reference {
  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      try {
        System.out.println(run(line.split("\t")));
      } catch (Throwable error) {
        System.out.println(error.toString().replace('\n', ' '));
      }
      System.out.flush();
    }
  }

  private static String run(String[] words) throws Exception {
    switch (words[0]) {
      case "columns":
        columns(words[1], words[2]);
        return "ok";
      case "flat":
        flat(words[1], words[2], words[3], Integer.parseInt(words[4]));
        return "ok";
      case "nested":
        nested(words[1], words[2], words[3], Integer.parseInt(words[4]));
        return "ok";
      case "to-avro":
        toAvro(words[1], words[2]);
        return "ok";
      case "from-avro":
        fromAvro(words[1], words[2], words[3], words[4]);
        return "ok";
      case "seek":
        return seek(words[1], words[2], Long.parseLong(words[3]));
      case "scan":
        return scan(words[1], words.length > 2 ? words[2] : null);
      case "write":
        return write(words[1], words[2]);
      default:
        throw new IllegalArgumentException(words[0]);
    }
  }

  /** The physical columns of a file as one JSON document. */
  private static void columns(String path, String target) throws Exception {
    ColumnFileReader reader = new ColumnFileReader(new File(path));
    int count = (int) reader.getColumnCount();
    ColumnValues<?>[] values = new ColumnValues<?>[count];
    List<List<String>> lengths = new ArrayList<>();
    List<List<String>> found = new ArrayList<>();
    for (int i = 0; i < count; i++) {
      values[i] = reader.getValues(i);
      lengths.add(new ArrayList<>());
      found.add(new ArrayList<>());
    }
    for (long row = 0; row < reader.getRowCount(); row++) {
      for (ColumnValues<?> each : values) {
        each.startRow();
      }
      for (ColumnMetaData root : reader.getRoots()) {
        walk(root, values, lengths, found);
      }
    }
    try (PrintWriter out = new PrintWriter(target, "UTF-8")) {
      out.print("{\"rows\":" + reader.getRowCount() + ",\"columns\":[");
      for (int i = 0; i < count; i++) {
        ColumnMetaData column = reader.getColumnMetaData(i);
        String parent = column.getParent() == null ? "null" : text(column.getParent().getName());
        out.print((i == 0 ? "" : ",") + "{\"name\":" + text(column.getName()) + ",\"type\":\"" + column.getType().getName()
            + "\",\"array\":" + column.isArray() + ",\"parent\":" + parent);
        if (column.isArray()) {
          out.print(",\"lengths\":[" + String.join(",", lengths.get(i)) + "]");
        }
        out.print(",\"values\":[" + String.join(",", found.get(i)) + "]}");
      }
      out.print("]}");
    }
    reader.close();
  }

  private static void walk(
      ColumnMetaData column, ColumnValues<?>[] values, List<List<String>> lengths, List<List<String>> found) throws Exception {
    int number = column.getNumber();
    int count = 1;
    if (column.isArray()) {
      count = values[number].nextLength();
      lengths.get(number).add(Integer.toString(count));
    }
    for (int i = 0; i < count; i++) {
      Object value = values[number].nextValue();
      if (column.getType() != ValueType.NULL) {
        found.get(number).add(shown(value));
      }
      if (column.isArray()) {
        for (ColumnMetaData child : column.getChildren()) {
          walk(child, values, lengths, found);
        }
      }
    }
  }

  private static String shown(Object value) {
    if (value instanceof Float) {
      float number = (Float) value;
      return '"' + (Float.isNaN(number) || Float.isInfinite(number) ? Float.toString(number)
          : String.format("%08x", Float.floatToRawIntBits(number))) + '"';
    }
    if (value instanceof Double) {
      double number = (Double) value;
      return '"' + (Double.isNaN(number) || Double.isInfinite(number) ? Double.toString(number)
          : String.format("%016x", Double.doubleToRawLongBits(number))) + '"';
    }
    if (value instanceof ByteBuffer) {
      StringBuilder digits = new StringBuilder("\"");
      ByteBuffer bytes = ((ByteBuffer) value).duplicate();
      while (bytes.hasRemaining()) {
        digits.append(String.format("%02x", bytes.get()));
      }
      return digits.append('"').toString();
    }
    return value instanceof String ? text((String) value) : value.toString();
  }

  private static String text(String value) {
    StringBuilder found = new StringBuilder("\"");
    for (char each : value.toCharArray()) {
      found.append(each < ' ' || each == '"' || each == '\\' ? String.format("\\u%04x", (int) each) : String.valueOf(each));
    }
    return found.append('"').toString();
  }

  private static ColumnFileMetaData metadata(String codec, String checksum) {
    ColumnFileMetaData found = new ColumnFileMetaData();
    found.setCodec(codec);
    found.setChecksum(checksum);
    found.set("origin", "reference");
    return found;
  }

  /** A file with a column of each type; long and string have first values, bytes has a codec and a checksum of its own. */
  private static void flat(String path, String codec, String checksum, int rows) throws Exception {
    ValueType[] types = ValueType.values();
    ColumnMetaData[] columns = new ColumnMetaData[types.length];
    for (int i = 0; i < types.length; i++) {
      columns[i] = new ColumnMetaData("c_" + types[i].getName(), types[i]);
      columns[i].hasIndexValues(types[i] == ValueType.LONG || types[i] == ValueType.STRING);
    }
    columns[types.length - 1].setCodec("deflate").setChecksum("crc32");
    ColumnFileWriter writer = new ColumnFileWriter(metadata(codec, checksum), columns);
    Random random = new Random(rows);
    for (int row = 0; row < rows; row++) {
      Object[] values = new Object[types.length];
      for (int i = 0; i < types.length; i++) {
        values[i] = value(types[i], random, row);
      }
      writer.writeRow(values);
    }
    writer.writeTo(new File(path));
  }

  private static Object value(ValueType type, Random random, int row) {
    switch (type) {
      case BOOLEAN:
        return random.nextBoolean();
      case INT:
        return random.nextInt(4) == 0 ? random.nextInt() : random.nextInt(200) - 100;
      case LONG:
        return row * 3L - 1000;
      case FIXED32:
        return random.nextInt();
      case FIXED64:
        return random.nextLong();
      case FLOAT:
        return random.nextInt(9) == 0 ? Float.NaN : random.nextFloat();
      case DOUBLE:
        return random.nextInt(9) == 0 ? Double.NEGATIVE_INFINITY : random.nextGaussian();
      case STRING:
        return String.format("%07d-%s", row, "é🍖x".repeat(random.nextInt(4)));
      case BYTES:
        byte[] bytes = new byte[random.nextInt(40)];
        random.nextBytes(bytes);
        return ByteBuffer.wrap(bytes);
      default:
        return null;
    }
  }

  /** A file with array columns of all types, and arrays of records with arrays. */
  private static void nested(String path, String codec, String checksum, int rows) throws Exception {
    List<ColumnMetaData> columns = new ArrayList<>();
    for (ValueType type : ValueType.values()) {
      columns.add(new ColumnMetaData("a_" + type.getName(), type).isArray(true));
    }
    int first = columns.size();
    ColumnMetaData items = new ColumnMetaData("items", ValueType.NULL).isArray(true);
    columns.add(items);
    for (ValueType type : ValueType.values()) {
      columns.add(new ColumnMetaData("i_" + type.getName(), type).setParent(items));
    }
    ColumnMetaData notes = new ColumnMetaData("notes", ValueType.STRING).setParent(items).isArray(true);
    columns.add(notes);
    columns.add(new ColumnMetaData("deep", ValueType.BOOLEAN).setParent(notes).isArray(true));
    ColumnFileWriter writer = new ColumnFileWriter(metadata(codec, checksum), columns.toArray(new ColumnMetaData[0]));
    Random random = new Random(rows);
    for (int row = 0; row < rows; row++) {
      writer.startRow();
      for (int i = 0; i < first; i++) {
        int count = random.nextInt(3) == 0 ? random.nextInt(12) : random.nextInt(2);
        writer.writeLength(count, i);
        for (int j = 0; j < count; j++) {
          writer.writeValue(value(ValueType.values()[i], random, row), i);
        }
      }
      int count = random.nextInt(3);
      writer.writeLength(count, first);
      for (int j = 0; j < count; j++) {
        writer.writeValue(null, first);
        for (int i = 0; i < ValueType.values().length; i++) {
          writer.writeValue(value(ValueType.values()[i], random, row), first + 1 + i);
        }
        int inner = random.nextInt(4);
        int place = first + 1 + ValueType.values().length;
        writer.writeLength(inner, place);
        for (int k = 0; k < inner; k++) {
          writer.writeValue("n" + random.nextInt(1000), place);
          int bits = random.nextInt(10);
          writer.writeLength(bits, place + 1);
          for (int b = 0; b < bits; b++) {
            writer.writeValue(random.nextBoolean(), place + 1);
          }
        }
      }
      writer.endRow();
    }
    writer.writeTo(new File(path));
  }

  private static void toAvro(String path, String target) throws Exception {
    AvroColumnReader<GenericRecord> reader = new AvroColumnReader<>(new AvroColumnReader.Params(new File(path)));
    Schema schema = reader.getFileSchema();
    try (DataFileWriter<GenericRecord> writer = new DataFileWriter<>(new GenericDatumWriter<GenericRecord>(schema))) {
      writer.create(schema, new File(target));
      for (long row = 0; row < reader.getRowCount(); row++) {
        writer.append(reader.next());
      }
    }
    reader.close();
  }

  private static void fromAvro(String path, String target, String codec, String checksum) throws Exception {
    try (DataFileReader<GenericRecord> reader = new DataFileReader<>(new File(path), new GenericDatumReader<GenericRecord>())) {
      AvroColumnWriter<GenericRecord> writer = new AvroColumnWriter<>(reader.getSchema(), metadata(codec, checksum));
      while (reader.hasNext()) {
        writer.write(reader.next());
      }
      writer.writeTo(new File(target));
    }
  }

  private static String seek(String path, String column, long value) throws Exception {
    ColumnFileReader reader = new ColumnFileReader(new File(path));
    ColumnValues<Long> values = reader.getValues(column);
    values.seek(Long.valueOf(value));
    return Long.toString(values.getRow()) + " " + values.next();
  }

  /** Reads all columns, or one; the nanoseconds of the fastest of three times. */
  private static String scan(String path, String only) throws Exception {
    long best = Long.MAX_VALUE;
    for (int time = 0; time < 3; time++) {
      long start = System.nanoTime();
      ColumnFileReader reader = new ColumnFileReader(new File(path));
      int count = (int) reader.getColumnCount();
      for (ColumnMetaData root : reader.getRoots()) {
        if (only == null || only.equals(root.getName())) {
          scan(reader, root);
        }
      }
      reader.close();
      best = Math.min(best, System.nanoTime() - start);
    }
    return Long.toString(best);
  }

  private static long used;

  private static void scan(ColumnFileReader reader, ColumnMetaData root) throws Exception {
    ColumnValues<?>[] values = new ColumnValues<?>[(int) reader.getColumnCount()];
    open(reader, root, values);
    for (long row = 0; row < reader.getRowCount(); row++) {
      for (ColumnValues<?> each : values) {
        if (each != null) {
          each.startRow();
        }
      }
      use(root, values);
    }
  }

  private static void open(ColumnFileReader reader, ColumnMetaData column, ColumnValues<?>[] values) throws Exception {
    values[column.getNumber()] = reader.getValues(column.getNumber());
    for (ColumnMetaData child : column.getChildren()) {
      open(reader, child, values);
    }
  }

  private static void use(ColumnMetaData column, ColumnValues<?>[] values) throws Exception {
    int number = column.getNumber();
    int count = column.isArray() ? values[number].nextLength() : 1;
    for (int i = 0; i < count; i++) {
      Object value = values[number].nextValue();
      used += value == null ? 0 : 1;
      for (ColumnMetaData child : column.getChildren()) {
        use(child, values);
      }
    }
  }

  /** Copies a file of columns without parents; the nanoseconds of writing alone, the fastest of three times. */
  private static String write(String path, String target) throws Exception {
    ColumnFileReader reader = new ColumnFileReader(new File(path));
    int count = (int) reader.getColumnCount();
    int rows = (int) reader.getRowCount();
    ColumnMetaData[] found = reader.getColumnMetaData();
    Object[][] table = new Object[count][rows];
    for (int i = 0; i < count; i++) {
      ColumnValues<?> values = reader.getValues(i);
      for (int row = 0; row < rows; row++) {
        table[i][row] = values.next();
      }
    }
    long best = Long.MAX_VALUE;
    for (int time = 0; time < 3; time++) {
      long start = System.nanoTime();
      ColumnMetaData[] columns = new ColumnMetaData[count];
      for (int i = 0; i < count; i++) {
        columns[i] = new ColumnMetaData(found[i].getName(), found[i].getType());
      }
      ColumnFileMetaData metadata = new ColumnFileMetaData();
      metadata.setCodec(reader.getMetaData().getCodec());
      metadata.setChecksum(reader.getMetaData().getChecksum());
      ColumnFileWriter writer = new ColumnFileWriter(metadata, columns);
      for (int row = 0; row < rows; row++) {
        writer.startRow();
        for (int i = 0; i < count; i++) {
          writer.writeValue(table[i][row], i);
        }
        writer.endRow();
      }
      writer.writeTo(new File(target));
      best = Math.min(best, System.nanoTime() - start);
    }
    return Long.toString(best);
  }
}
