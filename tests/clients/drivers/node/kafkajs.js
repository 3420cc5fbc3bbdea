// kafkajs, which reads as a member of a group alone: each range has a group of its own. `--version` is the name that a
// version of kafkajs is installed under.
'use strict'

const { bootstrap, main, options } = require('./driver')
const { decompress: decompressLz4 } = require('lz4js')
const { decompress: decompressZstd } = require('fzstd')
const { uncompressFramed } = require('snappy')

const { Kafka, logLevel, CompressionCodecs } = require(options.version)

const SNAPPY = 2, LZ4 = 3, ZSTD = 4 // the old one knows no name for zstd
const codec = (decompress) => () => ({ decompress: async (bytes) => Buffer.from(decompress(bytes)) })
CompressionCodecs[SNAPPY] = codec(uncompressFramed)
CompressionCodecs[LZ4] = codec(decompressLz4)
CompressionCodecs[ZSTD] = codec(decompressZstd)

main(async ({ topic, partition, start }, take) => {
  const kafka = new Kafka({
    brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { initialRetryTime: 50 }
  })
  const consumer = kafka.consumer({
    groupId: `${topic}-${partition}-${start}-${process.pid}`,
    maxWaitTimeInMs: 100,
    readUncommitted: options.isolation === 'read_uncommitted'
  })
  const { CRASH, GROUP_JOIN } = consumer.events
  if (CRASH) consumer.on(CRASH, ({ payload }) => take.error(payload.error)) // the old one has no such event
  consumer.on(GROUP_JOIN, () => consumer.seek({ topic, partition, offset: String(start) }))
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await consumer.run({
    eachMessage: async ({ partition: from, message: { offset, key, value, timestamp } }) => {
      const time = timestamp === undefined || timestamp === '-1' ? null : +timestamp
      if (from === partition) take.record({ offset: +offset, key, value, timestamp: time })
    }
  })
  return () => { consumer.disconnect() } // not waited for: it takes the old one a second
})
