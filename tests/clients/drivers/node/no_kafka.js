// no-kafka, which always sends Fetch v0.
'use strict'

const { bootstrap, main } = require('./driver')
const { SimpleConsumer } = require('no-kafka')

main(async ({ topic, partition, start }, take) => {
  const logFunction = (level, ...text) => level === 'ERROR' && take.error(new Error(text.join(' ')))
  const consumer = new SimpleConsumer({
    connectionString: bootstrap, idleTimeout: 10, maxWaitTime: 100, logger: { logFunction }
  })
  await consumer.init()
  await consumer.subscribe(topic, [partition], { offset: start }, async (messages) => {
    for (const { offset, message: { key, value } } of messages) {
      take.record({ offset, key, value, timestamp: null })
    }
  })
  return () => consumer.end()
})
