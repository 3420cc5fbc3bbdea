// What the drivers of Node's clients share, with the interface of all drivers:
//
//     DRIVER BOOTSTRAP TOPIC:PARTITION:START:END... [--version V] [--isolation I] [--seconds N]
//
// END is exclusive. Prints a line of JSON for each record, as driver.py in the folder above says, reads range after
// range, and fails with the client's error, or where a range takes too long.
'use strict'

const { parseArgs } = require('util')

const base64 = (bytes) => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString('base64'))

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    version: { type: 'string' },
    isolation: { type: 'string', default: 'read_uncommitted' },
    seconds: { type: 'string', default: '60' }
  }
})
const [bootstrap, ...ranges] = positionals

// Reads all ranges. `read(range, take)` begins to read one and gives how to stop; it calls `take.record` for each
// record and `take.error` where the client says that something is wrong.
const main = async (read) => {
  for (const text of ranges) {
    const [topic, partition, start, end] = text.split(':')
    try {
      await readRange(read, { topic, partition: +partition, start: +start, end: +end })
    } catch (error) {
      console.error(`${topic}-${partition}: ${error.message}`)
      process.exit(1)
    }
  }
  process.exit(0)
}

const readRange = async (read, range) => {
  const { topic, partition, end } = range
  let stop, timer
  try {
    await new Promise((resolve, reject) => {
      const expire = () => reject(new Error(`the end was not reached in ${options.seconds} s`))
      timer = setTimeout(expire, options.seconds * 1000)
      let isDone = false
      const record = ({ offset, key, value, timestamp }) => {
        if (!isDone && offset < end) {
          const line = { topic, partition, offset, key: base64(key), value: base64(value), timestamp }
          process.stdout.write(JSON.stringify(line) + '\n')
        }
        if (offset >= end - 1) {
          isDone = true
          resolve()
        }
      }
      read(range, { record, error: reject }).then((how) => { stop = how }, reject)
    })
  } finally {
    clearTimeout(timer)
    if (stop) await stop()
  }
}

module.exports = { bootstrap, main, options }
