// Prints the records of a topic up to its end as lines of JSON: node kafkajs.mjs SERVERS TOPIC [lz4]
import { randomUUID } from "node:crypto";
import kafkajs from "kafkajs";

const { Kafka, CompressionTypes, CompressionCodecs, logLevel } = kafkajs;
const [servers, topic, lz4] = process.argv.slice(2);
if (lz4) {
  const { compressFrame, decompressFrame } = await import("lz4-napi");
  CompressionCodecs[CompressionTypes.LZ4] = () => ({
    compress: ({ buffer }) => compressFrame(buffer),
    decompress: (buffer) => decompressFrame(buffer),
  });
}
const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.ERROR });
const admin = kafka.admin();
await admin.connect();
const ends = new Map();
for (const { partition, low, high } of await admin.fetchTopicOffsets(topic)) {
  if (Number(high) > Number(low)) ends.set(partition, Number(high));
}
await admin.disconnect();

const hex = (bytes) => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString("hex"));
const pairs = (headers) => Object.entries(headers ?? {}).map(([name, value]) => [name, hex(value)]);
// readUncommitted is false by default: aborted transactions are left out.
const consumer = kafka.consumer({ groupId: randomUUID(), readUncommitted: false });
consumer.on(consumer.events.CRASH, ({ payload }) => {
  console.error(payload.error.message);
  process.exit(1);
});
await consumer.connect();
await consumer.subscribe({ topics: [topic], fromBeginning: true });
const finished = new Promise((resolve) => {
  // The end of a transaction is a record that no consumer sees. The end of a batch is past it.
  consumer.on(consumer.events.END_BATCH_PROCESS, ({ payload }) => {
    if (Number(payload.lastOffset) + 1 >= ends.get(payload.partition)) ends.delete(payload.partition);
    if (ends.size === 0) resolve();
  });
});
consumer.run({
  eachMessage: async ({ partition, message }) => {
    const { offset, key, value, headers } = message;
    console.log(JSON.stringify([partition, Number(offset), hex(key), hex(value), pairs(headers)]));
  },
});
await finished;
await consumer.disconnect();
