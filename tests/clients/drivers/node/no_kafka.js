// no-kafka, which always sends Fetch v0. Without a group's members its offsets are those of OffsetCommit v0.
'use strict'

const { bootstrap, main, options } = require('./driver')
const kafka = require('no-kafka')

const CODECS = { none: kafka.COMPRESSION_NONE, gzip: kafka.COMPRESSION_GZIP, snappy: kafka.COMPRESSION_SNAPPY }

const settings = (take) => ({
  connectionString: bootstrap,
  idleTimeout: 10,
  maxWaitTime: 100,
  logger: { logFunction: (level, ...text) => level === 'ERROR' && take.error(new Error(text.join(' '))) }
})

const read = async ({ topic, partition, start, time }, take) => {
  const consumer = new kafka.SimpleConsumer(settings(take))
  await consumer.init()
  const from = time === undefined ? { offset: start } : { time }
  await consumer.subscribe(topic, [partition], from, async (messages) => {
    for (const { offset, message: { key, value } } of messages) {
      take.record({ offset, key, value, timestamp: null })
    }
  })
  return () => consumer.end()
}

const follow = async (topic, take) => {
  const consumer = new kafka.GroupConsumer({
    ...settings(take), groupId: options.group, startingOffset: kafka.EARLIEST_OFFSET
  })
  const handler = async (messages, _, partition) => {
    const { offset } = messages[messages.length - 1]
    const [{ error }] = await consumer.commitOffset({ topic, partition, offset }) // it commits the next one
    if (error) throw error // the member joins again, and the messages come again
    for (const { offset, message: { key, value } } of messages) {
      take.record({ topic, partition, offset, key, value, timestamp: null })
    }
  }
  await consumer.init([{ subscriptions: [topic], handler }])
  return () => consumer.end()
}

const produce = async (topic, messages, codec) => {
  const producer = new kafka.Producer({ connectionString: bootstrap, requiredAcks: -1, codec: CODECS[codec] })
  await producer.init()
  const sent = await producer.send(messages.map((message) => ({ topic, partition: 0, message })))
  for (const { error } of sent) if (error) throw error
  await producer.end()
}

main({ read, follow, produce })
