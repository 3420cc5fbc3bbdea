// kafka-node, which always sends Fetch v0.
'use strict'

const { bootstrap, main, options } = require('./driver')
const { Consumer, ConsumerGroup, KafkaClient, KeyedMessage, Offset, Producer } = require('kafka-node')

const CODECS = { none: 0, gzip: 1, snappy: 2 }
const BUFFERS = { encoding: 'buffer', keyEncoding: 'buffer' }

const offsetAt = (client, topic, partition, time) => new Promise((resolve, reject) => {
  new Offset(client).fetch([{ topic, partition, time, maxNum: 1 }], (error, found) =>
    error ? reject(error) : resolve(found[topic][partition][0]))
})

const read = async ({ topic, partition, start, time }, take) => {
  const client = new KafkaClient({ kafkaHost: bootstrap })
  const offset = time === undefined ? start : await offsetAt(client, topic, partition, time)
  const consumer = new Consumer(client, [{ topic, partition, offset }], {
    autoCommit: false, fromOffset: true, ...BUFFERS
  })
  consumer.on('message', ({ offset, key, value }) => take.record({ offset, key, value, timestamp: null }))
  consumer.on('error', take.error)
  consumer.on('offsetOutOfRange', () => take.error(new Error('the offset is out of range')))
  return () => new Promise((resolve) => consumer.close(false, resolve))
}

const follow = async (topic, take) => {
  const consumer = new ConsumerGroup({
    kafkaHost: bootstrap, groupId: options.group, fromOffset: 'earliest', autoCommit: false, ...BUFFERS
  }, topic)
  consumer.on('message', ({ partition, offset, key, value }) =>
    take.record({ topic, partition, offset, key, value, timestamp: null }))
  consumer.on('error', take.error)
  return () => new Promise((resolve, reject) => {
    // By itself it commits only what it has handed out.
    consumer.close(true, (error) => error ? reject(error) : resolve())
  })
}

const produce = (topic, messages, codec) => new Promise((resolve, reject) => {
  const producer = new Producer(new KafkaClient({ kafkaHost: bootstrap }), { requireAcks: 1 })
  producer.on('error', reject)
  producer.on('ready', () => {
    const keyed = messages.map(({ key, value }) => new KeyedMessage(key, value))
    const payload = { topic, messages: keyed, partition: 0, attributes: CODECS[codec] }
    producer.send([payload], (error) => error ? reject(error) : resolve())
  })
})

main({ read, follow, produce })
