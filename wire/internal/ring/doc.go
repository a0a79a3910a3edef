// Package ring is two byte rings in memory that two processes share, one for each direction.
//
//	m, err := ring.New(32 << 10)          // one process makes the memory and passes m.File on,
//	out, in := m.Producer(ring.Second), m.Consumer(ring.First)
//	m, err = ring.Open(fd)                // the other one maps what it was passed
//
// The peer can change all of the memory at any time, so nothing in it is believed. What an index says is checked
// against what this side knows by itself, and kept in this process from then on; bytes are copied out once, and looked
// at only after that. Whatever the peer does, a [Producer] and a [Consumer] touch no byte outside the memory, never
// wait and never loop: an index that makes no sense is [ErrCorrupt].
//
// Neither sleeps or wakes anybody by itself. A consumer that wants to sleep says so in the memory ([Consumer.Sleep]),
// and a producer that has put something there is told that it must wake it ([Producer.MustWake]); how is the caller's
// business.
//
// # Memory order
//
// The race detector does not see what another process does, so the order is argued here. Each index has one writer. A
// producer copies bytes and then stores tail; a consumer loads tail and then copies the bytes. A consumer copies bytes
// and then stores head; a producer loads head and then overwrites them. Loads and stores of package sync/atomic are
// sequentially consistent, so those are a release and an acquire, and more than that: a producer stores tail and then
// loads asleep, a consumer stores asleep and then loads tail, and of two such pairs at least one load sees the other
// side's store. So no consumer sleeps while there is something that nobody will wake it for. With weaker operations
// (release and acquire) both loads could see old values.
package ring
