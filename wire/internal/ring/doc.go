// Package ring implements two byte rings in memory shared by two processes, one for each direction.
//
//	m, file, err := ring.New(32 << 10)    // one process creates the memory and passes file
//	out, in := m.Producer(ring.Second), m.Consumer(ring.First)
//	m, err = ring.Open(fd)                // the other one maps it
//
// The peer can change the memory at any time. Indices are validated against local state and then kept in this process.
// Bytes are copied once and parsed afterwards. Whatever the peer does, a [Producer] and a [Consumer] never access bytes
// outside the memory, never wait and never loop. An invalid index is [ErrCorrupt].
//
// Neither of them sleeps or wakes the peer. A consumer announces its sleep in the memory ([Consumer.Sleep]). A producer
// learns from [Producer.MustWake] that it must wake the consumer; the caller does so.
//
// # Memory order
//
// The race detector cannot observe another process, so this is the argument for the order of accesses. Each index has
// one writer. A producer copies bytes and then stores tail; a consumer loads tail and then copies the bytes. A consumer
// copies bytes and then stores head; a producer loads head and then overwrites them. Loads and stores of package
// sync/atomic are sequentially consistent, which includes acquire and release. In addition, a producer stores tail and
// then loads asleep, and a consumer stores asleep and then loads tail. Of two such pairs at least one load sees the
// other store, so a consumer never sleeps unnoticed while the ring has data. With acquire and release alone, both loads
// could see old values.
package ring
