// Prints the records of a topic as lines of JSON, COUNT of them: node platformatic.mjs SERVERS TOPIC COUNT
import { randomUUID } from "node:crypto";
import { Consumer, FetchIsolationLevels, MessagesStreamModes } from "@platformatic/kafka";

const [servers, topic, count] = process.argv.slice(2);
const consumer = new Consumer({ groupId: randomUUID(), clientId: "reader", bootstrapBrokers: servers.split(",") });
const stream = await consumer.consume({
  topics: [topic],
  mode: MessagesStreamModes.EARLIEST,
  // A number: the text "READ_COMMITTED" is accepted, and then not obeyed.
  isolationLevel: FetchIsolationLevels.READ_COMMITTED,
  autocommit: false,
});
const hex = (bytes) => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString("hex"));
let left = Number(count);
for await (const { partition, offset, key, value, headers } of stream) {
  const pairs = [...headers].map(([name, data]) => [Buffer.from(name).toString(), hex(data)]);
  console.log(JSON.stringify([partition, Number(offset), hex(key), hex(value), pairs]));
  if (--left === 0) break;
}
await consumer.close(true);
