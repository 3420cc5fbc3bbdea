// Stands in for the native `snappy` that Node's old clients look for: the same functions on snappyjs, which needs no compiler.
'use strict'

const { compress, uncompress } = require('snappyjs')

const XERIAL_MAGIC = Buffer.from([0x82, 0x53, 0x4e, 0x41, 0x50, 0x50, 0x59, 0])
const XERIAL_HEADER_LENGTH = 16

const uncompressSync = (bytes) => Buffer.from(uncompress(bytes))

// A payload as Kafka's clients write it: xerial's blocks, or one plain block.
const uncompressFramed = (bytes) => {
  if (!bytes.subarray(0, XERIAL_MAGIC.length).equals(XERIAL_MAGIC)) return uncompressSync(bytes)
  const blocks = []
  for (let position = XERIAL_HEADER_LENGTH; position < bytes.length;) {
    const end = position + 4 + bytes.readUInt32BE(position)
    blocks.push(uncompressSync(bytes.subarray(position + 4, end)))
    position = end
  }
  return Buffer.concat(blocks)
}

const withCallback = (work) => (bytes, callback) => {
  try {
    callback(null, work(bytes))
  } catch (error) {
    callback(error)
  }
}

module.exports = {
  compressSync: compress,
  uncompressSync,
  uncompressFramed,
  compress: withCallback(compress),
  uncompress: withCallback(uncompressSync)
}
