// kafkajs, which reads as a member of a group alone: without `--group` each range has one of its own. `--version` is the
// name that a version of kafkajs is installed under.
'use strict'

const { bootstrap, main, options } = require('./driver')
const { compress: compressLz4, decompress: decompressLz4 } = require('lz4js')
const { decompress: decompressZstd } = require('fzstd')
const { compressSync, uncompressFramed } = require('snappy')

const { Kafka, logLevel, CompressionCodecs } = require(options.version)

const CODECS = { none: 0, gzip: 1, snappy: 2, lz4: 3, zstd: 4 } // the old one knows no name for zstd
const codec = (compress, decompress) => () => ({
  compress: async ({ buffer }) => Buffer.from(compress(buffer)),
  decompress: async (bytes) => Buffer.from(decompress(bytes))
})
CompressionCodecs[CODECS.snappy] = codec(compressSync, uncompressFramed)
CompressionCodecs[CODECS.lz4] = codec(compressLz4, decompressLz4)
CompressionCodecs[CODECS.zstd] = codec(undefined, decompressZstd)

const kafka = new Kafka({
  brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50 }
})

const begin = async (topic, groupId, take, onJoin) => {
  const consumer = kafka.consumer({
    groupId, maxWaitTimeInMs: 100, readUncommitted: options.isolation === 'read_uncommitted'
  })
  const { CRASH, GROUP_JOIN } = consumer.events
  if (CRASH) consumer.on(CRASH, ({ payload }) => take.error(payload.error)) // the old one has no such event
  if (onJoin) consumer.on(GROUP_JOIN, () => onJoin(consumer))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition, message: { offset, key, value, timestamp } }) => {
      const time = timestamp === undefined || timestamp === '-1' ? null : +timestamp
      take.record({ topic, partition, offset: +offset, key, value, timestamp: time })
    }
  })
  return consumer
}

const offsetAt = async (topic, partition, time) => {
  const admin = kafka.admin()
  await admin.connect()
  const found = await admin.fetchTopicOffsetsByTimestamp(topic, time)
  await admin.disconnect()
  return +found.find((one) => one.partition === partition).offset
}

const read = async ({ topic, partition, start, time }, take) => {
  const offset = time === undefined ? start : await offsetAt(topic, partition, time)
  const own = { error: take.error, record: (found) => found.partition === partition && take.record(found) }
  const consumer = await begin(topic, `${topic}-${partition}-${start}-${process.pid}`, own, (joined) =>
    joined.seek({ topic, partition, offset: String(offset) }))
  return () => { consumer.disconnect() } // not waited for: it takes the old one a second
}

const follow = async (topic, take) => {
  const consumer = await begin(topic, options.group, take)
  return () => consumer.disconnect() // behind the batch that is handed out, which it commits
}

const produce = async (topic, messages, codec) => {
  const producer = kafka.producer()
  await producer.connect()
  const of0 = messages.map((message) => ({ ...message, partition: 0 }))
  await producer.send({ topic, acks: -1, compression: CODECS[codec], messages: of0 })
  await producer.disconnect()
}

main({ read, follow, produce })
