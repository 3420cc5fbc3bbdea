// kafka-node, which always sends Fetch v0.
'use strict'

const { bootstrap, main } = require('./driver')
const { Consumer, KafkaClient } = require('kafka-node')

main(async ({ topic, partition, start }, take) => {
  const client = new KafkaClient({ kafkaHost: bootstrap })
  const consumer = new Consumer(client, [{ topic, partition, offset: start }], {
    autoCommit: false, fromOffset: true, encoding: 'buffer', keyEncoding: 'buffer'
  })
  consumer.on('message', ({ offset, key, value }) => take.record({ offset, key, value, timestamp: null }))
  consumer.on('error', take.error)
  consumer.on('offsetOutOfRange', () => take.error(new Error('the offset is out of range')))
  return () => new Promise((resolve) => consumer.close(false, resolve))
})
