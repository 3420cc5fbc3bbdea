// What the drivers of Node's clients share, with the interface of all drivers:
//
//     DRIVER BOOTSTRAP TOPIC:PARTITION:START:END... [--version V] [--isolation I] [--seconds N] [--time T]
//     DRIVER BOOTSTRAP TOPIC:PARTITION:START:END... [--version V] [--seconds N] --group G [--share]
//     DRIVER produce BOOTSTRAP TOPIC COUNT VERSION CODEC [--version V]
//
// END is exclusive. Prints a line of JSON for each record, as driver.py in the folder above says, reads range after
// range, and fails with the client's error, or where a range takes too long. The member of a group ends as that says, too.
// A producer does what producer_driver.py says. Its versions are those of Kafka; `--version` is of a client that is
// installed more than once.
'use strict'

const { parseArgs } = require('util')

const base64 = (bytes) => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString('base64'))

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    version: { type: 'string' },
    isolation: { type: 'string', default: 'read_uncommitted' },
    seconds: { type: 'string', default: '60' },
    time: { type: 'string' },
    group: { type: 'string' },
    share: { type: 'boolean', default: false }
  }
})
const isProducing = positionals[0] === 'produce'
const [bootstrap, ...ranges] = isProducing ? positionals.slice(1) : positionals
const time = options.time === undefined ? undefined : +options.time

// Runs what a client does, which is an object of functions:
//
// - `read(range, take)` begins to read a range and gives how to stop; it calls `take.record` for each record and
//   `take.error` where the client says that something is wrong. A range has `time` where reading starts at a time.
// - `follow(topic, take)` subscribes to a topic in a group, likewise; it commits what it has handed on, or how to stop does.
// - `produce(topic, messages, codec)` sends messages, which are a key and a value, to partition 0.
const main = async ({ read, follow, produce }) => {
  if (isProducing) await orExit('produce', () => send(produce))
  else if (options.group) await orExit(options.group, () => share(follow))
  else {
    for (const text of ranges) {
      const [topic, partition, start, end] = text.split(':')
      await orExit(`${topic}-${partition}`, () =>
        readRange(read, { topic, partition: +partition, start: +start, end: +end, time }))
    }
  }
  process.exit(0)
}

const orExit = async (what, work) => {
  try {
    await work()
  } catch (error) {
    console.error(`${what}: ${error.message}`)
    process.exit(1)
  }
}

const tell = ({ topic, partition, offset, key, value, timestamp }) => {
  const line = { topic, partition, offset, key: base64(key), value: base64(value), timestamp }
  process.stdout.write(JSON.stringify(line) + '\n')
}

const send = (produce) => {
  const [topic, count, , codec] = ranges
  const messages = Array.from({ length: +count }, (_, number) => ({ key: `k${number}`, value: `v${number}` }))
  return produce(topic, messages, codec)
}

const share = async (follow) => {
  const ends = new Map(ranges.map((text) => text.split(':')).map(([topic, partition, , end]) => [`${topic}:${partition}`, +end]))
  const topic = ranges[0].split(':')[0]
  let stop
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`the end was not reached in ${options.seconds} s`)), options.seconds * 1000)
    const record = (found) => {
      tell(found)
      if (found.offset >= ends.get(`${found.topic}:${found.partition}`) - 1) ends.delete(`${found.topic}:${found.partition}`)
      if (ends.size === 0 || (options.share && ends.size < ranges.length)) resolve()
    }
    follow(topic, { record, error: reject }).then((how) => { stop = how }, reject)
  })
  await stop()
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
        if (!isDone && offset < end) tell({ topic, partition, offset, key, value, timestamp })
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
