package keeper

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
)

// refillLocked stores the next part of what the keeper misses. The rest follows in the background, beside publications.
func (p *Process) refillLocked() error {
	var names []string
	var files []*os.File
	limit := perFrame
	if p.single {
		limit = 1
	}
	for len(p.missing) > 0 && len(names) < limit {
		name := p.missing[0]
		p.missing = p.missing[1:]
		if f := p.held[name]; f != nil { // otherwise it was removed meanwhile
			names, files = append(names, name), append(files, f)
		}
	}
	if len(names) > 0 {
		_, _, err := p.tryLocked(request{Operation: opPut, Names: names}, files...)
		var refused *refusedError
		if errors.As(err, &refused) && len(names) > 1 { // a keeper of an earlier version
			p.single, p.missing = true, append(names, p.missing...)
			return p.refillLocked()
		}
		if err != nil {
			return err
		}
	}
	if len(p.missing) > 0 {
		select {
		case p.more <- struct{}{}:
		default:
		}
	}
	return nil
}

// refillAllLocked stores everything that the keeper misses.
func (p *Process) refillAllLocked() error {
	for len(p.missing) > 0 {
		if err := p.refillLocked(); err != nil {
			p.dropLocked()
			return err
		}
	}
	return nil
}

// Stored returns duplicates of everything that the keeper holds at one moment. The caller owns them. Process stores them
// again if the keeper ends. It fails with [endpoint.ErrInUse] if another process changes the store all the time.
func (p *Process) Stored() (map[string]*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	const attempts = 10
	for range attempts {
		stored, err := p.storedLocked()
		if err != nil {
			return nil, err
		}
		if stored != nil {
			if err := p.holdLocked(stored); err != nil {
				closeAll(slices.Collect(maps.Values(stored)))
				return nil, err
			}
			return stored, nil
		}
	}
	return nil, fmt.Errorf("%w: another process changes what the keeper on %s holds", status.ErrInUse, p.opts.Socket)
}

// storedLocked returns everything that the keeper holds, or nil if some of what it listed was gone when it was fetched.
func (p *Process) storedLocked() (map[string]*os.File, error) {
	names, err := p.namesLocked()
	if err != nil {
		return nil, err
	}
	status.Reach("store listed")
	stored := map[string]*os.File{}
	for part := range slices.Chunk(names, perGet) {
		if err := p.getLocked(part, stored); err != nil {
			closeAll(slices.Collect(maps.Values(stored)))
			return nil, fmt.Errorf("get the stored descriptors: %w", err)
		}
	}
	if slices.ContainsFunc(names, func(name string) bool { return stored[name] == nil && checkName(name) == nil }) {
		closeAll(slices.Collect(maps.Values(stored)))
		return nil, nil
	}
	return stored, nil
}

// getLocked adds the descriptors of the names to stored.
func (p *Process) getLocked(names []string, stored map[string]*os.File) error {
	got, files, err := p.requestLocked(request{Operation: opGet, Names: names})
	if err != nil {
		return err
	}
	if len(files) != len(got.Names) {
		closeAll(files)
		return errAnswer
	}
	for i, name := range got.Names {
		if stored[name] != nil || checkName(name) != nil {
			files[i].Close()
			continue
		}
		stored[name] = files[i]
	}
	return nil
}

// holdLocked makes held duplicates of exactly what is stored. What this process held before may have been freed by another
// owner.
func (p *Process) holdLocked(stored map[string]*os.File) error {
	held := map[string]*os.File{}
	for name, f := range stored {
		own, err := duplicate(f)
		if err != nil {
			closeAll(slices.Collect(maps.Values(held)))
			return err
		}
		held[name] = own
	}
	closeAll(slices.Collect(maps.Values(p.held)))
	p.held = held
	return nil
}

// Forget releases the descriptors that Process would store in another keeper, because a successor has them, or because this
// process has not adopted them. The keeper holds them still.
func (p *Process) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	closeAll(slices.Collect(maps.Values(p.held)))
	p.missing = nil
	if !p.closed {
		p.held = map[string]*os.File{}
	}
}
