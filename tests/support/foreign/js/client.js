// A producer and a consumer of ali-ons, told what to do by their arguments. They print one JSON object for each
// thing that happened.
//
//   node client.js send    NAME_SERVER TOPIC WAY BODY...   WAY: sync, or a tag
//   node client.js consume NAME_SERVER GROUP TOPIC MODEL KIND EXPRESSION [FAILING]
//                                      MODEL: clustering, broadcasting; KIND: tag, sql; until stdin ends
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');
const httpclient = require('urllib');

const logger = { info() {}, debug() {}, warn: console.error, error: console.error };
const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);
const options = (nameServer) => ({ nameSrv: nameServer, httpclient, logger });

async function send(nameServer, topic, way, ...bodies) {
  const producer = new Producer({ ...options(nameServer), producerGroup: 'js-producers' });
  await producer.ready();
  for (const body of bodies) {
    const message = new Message(topic, way === 'sync' ? '' : way, body);
    message.keys = [body];
    const result = await producer.send(message);
    say({ sent: result.msgId, status: result.sendStatus === 'SEND_OK' ? 0 : 1, offset: result.queueOffset });
  }
  process.exit(0);
}

async function consume(nameServer, group, topic, model, kind, expression, failing) {
  const consumer = new Consumer({
    ...options(nameServer),
    consumerGroup: group,
    isBroadcast: model === 'broadcasting',
    instanceName: `${process.pid}`, // two of one machine are one client otherwise
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    maxReconsumeTimes: 2,
  });
  consumer.on('error', (error) => console.error(error));
  const wanted = kind === 'sql' ? { expressionType: 'SQL92', subString: expression } : expression;
  consumer.subscribe(topic, wanted, async (message) => {
    const body = message.body.toString();
    say({
      body, tag: message.tags || '', keys: message.keys || '', queue: message.queueId,
      offset: message.queueOffset, times: message.reconsumeTimes,
    });
    if (failing && body === failing) throw new Error(failing);
  });
  await consumer.ready();
  say({ started: group });
  process.stdin.on('end', async () => {
    await consumer.close();
    process.exit(0);
  });
  process.stdin.resume();
}

({ send, consume })[process.argv[2]](...process.argv.slice(3));
