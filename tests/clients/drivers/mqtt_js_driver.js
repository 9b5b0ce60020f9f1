// One MQTT.js client, told what to do by lines of JSON on standard input; answers and messages are lines of JSON.
"use strict";

const mqtt = require(process.argv[2]);
const lines = require("node:readline").createInterface({ input: process.stdin });

let client = null;

function say(fields) {
  process.stdout.write(JSON.stringify(fields) + "\n");
}

function encoded(properties) {
  const copy = { ...properties };
  if (copy.correlationData) copy.correlationData = copy.correlationData.toString("base64");
  return copy;
}

function answer(error, fields) {
  say(error ? { error: String(error) } : fields);
}

const verbs = {
  connect({ options }) {
    client = mqtt.connect({ host: "127.0.0.1", reconnectPeriod: 0, ...options });
    client.on("error", (error) => say({ error: String(error) }));
    client.on("connect", (connack) => say({ sessionPresent: connack.sessionPresent }));
    client.on("message", (topic, payload, packet) =>
      say({
        topic,
        payload: payload.toString("base64"),
        qos: packet.qos,
        retain: packet.retain,
        properties: encoded(packet.properties),
      }));
  },
  subscribe({ filter, options }) {
    client.subscribe(filter, options, (error, granted) => answer(error, { granted: granted.map((each) => each.qos) }));
  },
  unsubscribe({ filter }) {
    client.unsubscribe(filter, (error) => answer(error, {}));
  },
  publish({ name, payload, options }) {
    if (options.properties?.correlationData) {
      options.properties.correlationData = Buffer.from(options.properties.correlationData, "base64");
    }
    client.publish(name, Buffer.from(payload, "base64"), options, (error) => answer(error, {}));
  },
  end() {
    client.end(false, {}, () => say({}));
  },
};

lines.on("line", (line) => {
  const fields = JSON.parse(line);
  verbs[fields.verb](fields);
});
lines.on("close", () => process.exit(0));
