package persist

import (
	"errors"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// smallJournal is the size in bytes below which a journal is not compacted.
const smallJournal = 256 << 10

// wakeLocked starts the goroutine that removes descriptors and compacts the journal, if there is work and it does not
// run. Both wait for the store, so they happen outside of publications.
func (k *Versions) wakeLocked() {
	if k.working || k.closed || len(k.garbage) == 0 && !k.dueLocked() {
		return
	}
	k.working = true
	k.work.Go(k.run)
}

// dueLocked reports whether more than half of the journal is about versions that are gone.
func (k *Versions) dueLocked() bool {
	var live int64
	for _, v := range k.live {
		live += 2*entryOverhead + int64(v.at.at.bytes) + int64(v.digests.at.bytes)
	}
	return k.journal != nil && k.next == nil && k.journal.end > smallJournal+2*live
}

// run works until there is nothing left to do.
func (k *Versions) run() {
	for {
		k.mu.Lock()
		garbage, due := k.garbage, k.dueLocked() && !k.closed
		k.garbage = nil
		if len(garbage) == 0 && !due {
			k.working = false
			k.mu.Unlock()
			return
		}
		k.mu.Unlock()
		if len(garbage) > 0 {
			if err := k.store.Remove(garbage...); err != nil {
				k.log.Warn("memory of freed versions stays in the store", "descriptors", len(garbage), "error", err)
			}
			status.Reach("store cleaned")
		}
		if due {
			err := k.compact()
			status.Reach("compact replaced")
			if err != nil {
				k.log.Warn("the journal of kept versions is not compacted", "error", err)
				k.mu.Lock()
				k.working = false // the next change tries again
				k.mu.Unlock()
				return
			}
		}
	}
}

var errNotCompacted = errors.New("an entry could not be written to the new journal")

// compact replaces the journal by one that has only what an owner adopts. Until the store has it, entries are written
// to both, so the journal with the highest generation in the store is always complete.
func (k *Versions) compact() error {
	status.Reach("compact begun")
	next, err := createJournal(k.store, k.journal.id)
	if err != nil {
		return err
	}
	k.mu.Lock()
	if err = k.copyLocked(next); err == nil {
		k.next = next
	}
	k.newest++
	generation := k.newest
	k.mu.Unlock()
	status.Reach("compact copied")
	if err == nil {
		err = putNew(k.store, journalName(generation), next.file)
	}
	status.Reach("compact stored")
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil && k.next == nil {
		err = errNotCompacted
	}
	if err != nil {
		k.garbage = append(k.garbage, journalName(generation))
		if k.next != nil { // the store may have it in spite of the error
			if failed := k.next.abandon(); failed != nil {
				return errors.Join(err, failed) // entries are still written to both
			}
			k.next = nil
		}
		return errors.Join(err, next.file.Close())
	}
	k.next = nil
	old := k.journal
	k.garbage = append(k.garbage, journalName(k.generation))
	k.journal, k.generation = next, generation
	for _, v := range k.live {
		v.at.at, v.digests.at = v.at.next, v.digests.next
	}
	return old.file.Close()
}

// copyLocked writes the live versions and the numbers of names to a new journal.
func (k *Versions) copyLocked(to *journal) error {
	if err := k.copyVersionsLocked(to, true); err != nil {
		return err
	}
	withdrawn := map[string]bool{}
	for _, v := range k.live {
		if v.withdrawn && !withdrawn[v.name] {
			withdrawn[v.name] = true
			if _, err := to.append(entry{Kind: entryWithdrawn, Name: v.name}); err != nil {
				return err
			}
		}
	}
	if err := k.copyVersionsLocked(to, false); err != nil {
		return err
	}
	for text, n := range k.names {
		if _, err := to.append(entry{Kind: entryNumber, Name: text, Version: n.last}); err != nil {
			return err
		}
	}
	if k.floor > 0 {
		_, err := to.append(entry{Kind: entryFloor, Version: k.floor})
		return err
	}
	return nil
}

// copyVersionsLocked writes either the withdrawn versions or all others, with their digests.
func (k *Versions) copyVersionsLocked(to *journal, withdrawn bool) error {
	for _, v := range k.live {
		if v.withdrawn != withdrawn {
			continue
		}
		for _, p := range []*placed{&v.at, &v.digests} {
			if p.at.bytes == 0 {
				continue
			}
			payload, err := k.journal.payload(p.at)
			if err != nil {
				return err
			}
			if p.next, err = to.appendPayload(payload); err != nil {
				return err
			}
		}
	}
	return nil
}
