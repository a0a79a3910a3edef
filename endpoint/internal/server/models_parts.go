package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/transfer"
	"github.com/sharedtensor/sharedtensor/internal/ended"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// A version of several parts is one record, like any other version. Its state dict joins the parts: the names of part i
// begin with partPrefix(i). So all parts become current in one step, and share leases, retention, digests and the
// journal.
//
// Before that, the parts wait in an incomplete version, each for as long as its request:
//
//	first part ──> incomplete ── last part ──> published ──> the catalog's
//	                   │
//	                   └── time, withdrawal, end of the server, or no part left ──> ended
//
// Nothing about an incomplete version is in the catalog or in the store. So no reader and no later owner has a part of
// it.

// partPrefix is the prefix of the names of a part in the state dict of the whole version.
func partPrefix(index int) string { return "rank" + strconv.Itoa(index) + "/" }

// maxIncomplete is the maximum number of incomplete versions in a list.
const maxIncomplete = 256

// incomplete is a version of which some parts are published.
type incomplete struct {
	name  string
	of    int
	key   string
	uid   uint32
	begun time.Time
	ends  time.Time
	timer *time.Timer
	parts map[int]*record // by index
	bytes int64           // of the parts
	done  chan struct{}   // closed when version or err is set

	version uint64
	err     error
}

// incompletes holds the incomplete versions, one for a name at most.
type incompletes struct {
	mu  sync.Mutex
	by  map[string]*incomplete
	end error // why no part is accepted any more; nil before the end
}

// checkPart validates what a publisher has set about its part.
func checkPart(p message.Part) error {
	switch {
	case p.Of == 0 && (p.Index > 0 || p.Key != ""):
		return fmt.Errorf("%w: part %d needs the number of parts", status.ErrPart, p.Index)
	case p.Of > message.MaxParts:
		return fmt.Errorf("%w: a version has %d parts at most, not %d", status.ErrPart, message.MaxParts, p.Of)
	case p.Of > 0 && p.Index >= p.Of:
		return fmt.Errorf("%w: part %d of %d: parts count from 0", status.ErrPart, p.Index, p.Of)
	case len(p.Key) > message.MaxPartKey:
		return fmt.Errorf("%w: a key has %d bytes at most, not %d", status.ErrPart, message.MaxPartKey, len(p.Key))
	}
	return nil
}

// publishPart adds the record of a part to the incomplete version of its name, and waits until that is published. The
// last part publishes it. It takes the record. If ctx ends before, the part is removed.
func (m *Models) publishPart(ctx context.Context, r *record) (version uint64, err error) {
	if err = r.check(); err == nil {
		err = m.changes.enter(ctx)
	}
	if err != nil {
		return 0, errors.Join(err, r.Close())
	}
	v, last, err := m.addPart(r)
	m.changes.exit()
	if err != nil {
		return 0, errors.Join(err, r.Close())
	}
	status.Reach("part added")
	if last {
		v.publish(m)
	}
	select {
	case <-v.done:
		return v.version, v.err
	case <-ctx.Done():
	}
	if m.incomplete.remove(v, r) {
		return 0, errors.Join(ended.Cause(ctx), r.Close())
	}
	<-v.done // its publication or its end has begun
	return v.version, v.err
}

// addPart prepares a part and adds it to the incomplete version. It reports whether that is complete: then it is no longer
// in the table, and the caller publishes it.
func (m *Models) addPart(r *record) (v *incomplete, last bool, err error) {
	if err := r.usable(); err != nil {
		return nil, false, err
	}
	if r.StateDict.Len() == 0 {
		return nil, false, fmt.Errorf("%w: part %d has no tensors", status.ErrPart, r.Part.Index)
	}
	if info, err := m.Catalog.Info(r.Name); err == nil && info.Current != 0 { // refused now instead of after the last part
		if err := samePartsAs(recordOf(info.Versions[0].Record), int(r.Part.Of)); err != nil {
			return nil, false, err
		}
	}
	named, err := r.StateDict.WithPrefix(partPrefix(int(r.Part.Index)))
	if err != nil {
		return nil, false, err
	}
	if err := r.StateDict.Close(); err != nil {
		return nil, false, errors.Join(err, named.Close())
	}
	r.StateDict = named
	return m.incomplete.add(r, m.Limits.PartTime, m.expirePart)
}

// samePartsAs returns an error unless the version that is superseded has the same number of parts, 0 for a whole. Readers
// of a part could not continue with another number.
func samePartsAs(current *record, parts int) error {
	switch {
	case current.Parts == parts:
		return nil
	case current.Parts == 0:
		return fmt.Errorf("%w: the current version of %q is not made of parts: withdraw the name first", status.ErrPart, current.Name)
	case parts == 0:
		return fmt.Errorf("%w: the current version of %q is made of %d parts: publish parts, or withdraw the name first", status.ErrPart, current.Name, current.Parts)
	}
	return fmt.Errorf("%w: the current version of %q is made of %d parts, not %d: withdraw the name first", status.ErrPart, current.Name, current.Parts, parts)
}

// add adds a part to the incomplete version of its name, which it creates with the first part.
func (t *incompletes) add(r *record, limit time.Duration, expire func(*incomplete)) (v *incomplete, last bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.end != nil {
		return nil, false, t.end
	}
	part, uid := r.Part, r.Origin.Publisher.UID
	if v = t.by[r.Name]; v == nil {
		now := time.Now()
		v = &incomplete{
			name: r.Name, of: int(part.Of), key: part.Key, uid: uid, begun: now, ends: now.Add(limit),
			parts: map[int]*record{}, done: make(chan struct{}),
		}
		v.timer = time.AfterFunc(limit, func() { expire(v) })
		if t.by == nil {
			t.by = map[string]*incomplete{}
		}
		t.by[r.Name] = v
	}
	switch {
	case uid != v.uid:
		return nil, false, fmt.Errorf("%w: uid %d has published the other parts of this version of %q", status.ErrPermission, v.uid, r.Name)
	case int(part.Of) != v.of:
		return nil, false, fmt.Errorf("%w: the other parts of this version of %q are of %d, not of %d", status.ErrPart, r.Name, v.of, part.Of)
	case part.Key != v.key:
		return nil, false, fmt.Errorf("%w: the other parts of this version of %q have the key %q, not %q", status.ErrPart, r.Name, v.key, part.Key)
	case v.parts[int(part.Index)] != nil:
		return nil, false, fmt.Errorf("%w: part %d of this version of %q is published already, and waits for the others", status.ErrPart, part.Index, r.Name)
	}
	if current := firstOf(v.parts); current != nil && !sameCondition(current.Current, r.Current) {
		return nil, false, fmt.Errorf("%w: the other parts of this version of %q require another current version", status.ErrPart, r.Name)
	}
	v.parts[int(part.Index)] = r
	v.bytes += r.StateDict.Bytes()
	if len(v.parts) == v.of {
		t.takeLocked(v)
		return v, true, nil
	}
	return v, false, nil
}

// sameCondition reports whether two publications require the same current version.
func sameCondition(a, b *uint64) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

// firstOf returns the part with the lowest index; nil if there is none.
func firstOf(parts map[int]*record) *record {
	if len(parts) == 0 {
		return nil
	}
	return parts[slices.Min(slices.Collect(maps.Keys(parts)))]
}

// takeLocked removes a version from the table. It returns false if that has happened before.
func (t *incompletes) takeLocked(v *incomplete) bool {
	if t.by[v.name] != v {
		return false
	}
	v.timer.Stop()
	delete(t.by, v.name)
	return true
}

// remove removes a part of a version whose publisher has left. It returns false if the version is no longer in the table.
func (t *incompletes) remove(v *incomplete, r *record) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.by[v.name] != v {
		return false
	}
	delete(v.parts, int(r.Part.Index))
	v.bytes -= r.StateDict.Bytes()
	if len(v.parts) == 0 {
		t.takeLocked(v)
	}
	return true
}

// fail ends a version with an error for its publishers. It returns false if the version is no longer in the table.
func (t *incompletes) fail(v *incomplete, why error) bool {
	t.mu.Lock()
	taken := t.takeLocked(v)
	t.mu.Unlock()
	if !taken {
		return false
	}
	for _, r := range v.parts {
		_ = r.Close() // best effort: nobody has used the memory
	}
	v.err = why
	close(v.done)
	return true
}

// withdraw ends the incomplete version of a name, and reports whether there was one.
func (t *incompletes) withdraw(name string) bool {
	t.mu.Lock()
	v := t.by[name]
	t.mu.Unlock()
	return v != nil && t.fail(v, fmt.Errorf("%w: %q was withdrawn before all parts were published", status.ErrIncomplete, name))
}

// close ends all incomplete versions. Parts that are published later are refused with the same error.
func (t *incompletes) close(why error) {
	t.mu.Lock()
	if t.end == nil {
		t.end = why
	}
	all := slices.Collect(maps.Values(t.by))
	t.mu.Unlock()
	for _, v := range all {
		t.fail(v, why)
	}
}

// expirePart ends a version whose time is over.
func (m *Models) expirePart(v *incomplete) {
	m.incomplete.mu.Lock()
	missing := v.missingLocked()
	m.incomplete.mu.Unlock()
	why := fmt.Errorf("%w: the version of %q has expired after %v without %s of %d: publish all parts again", status.ErrIncomplete, v.name, v.ends.Sub(v.begun), missing, v.of)
	if m.incomplete.fail(v, why) {
		m.Log.Warn("an incomplete version has expired", "name", v.name, "missing", missing, "of", v.of)
	}
}

// missingLocked names the missing parts, at most eight.
func (v *incomplete) missingLocked() string {
	var list []string
	for i := range v.of {
		if v.parts[i] == nil {
			list = append(list, strconv.Itoa(i))
		}
	}
	if len(list) == 1 {
		return "part " + list[0]
	}
	if more := len(list) - 8; more > 0 {
		list = append(list[:8], fmt.Sprintf("%d more", more))
	}
	return "parts " + strings.Join(list, ", ")
}

// publish publishes the version, whose parts are complete, and tells the result to its publishers.
func (v *incomplete) publish(m *Models) {
	defer close(v.done)
	joined, err := v.join(m)
	if err == nil {
		v.version, err = m.publishRecord(context.Background(), joined)
	}
	v.err = err
}

// join returns the record of the whole version. It takes those of the parts.
func (v *incomplete) join(m *Models) (*record, error) {
	first := v.parts[0]
	joined := &record{models: m, Publication: Publication{
		Name: v.name, Origin: first.Origin, Parts: v.of, Current: first.Current, SourceID: first.SourceID,
	}}
	var dicts []*module.StateDict
	for i := range v.of {
		r := v.parts[i]
		dicts = append(dicts, r.StateDict)
		joined.Digests = joined.Digests || r.Digests
		joined.After = max(joined.After, r.After)
		joined.Retain = cmp.Or(joined.Retain, r.Retain)
		joined.Origin.Source = cmp.Or(joined.Origin.Source, r.Origin.Source)
	}
	var err error
	joined.StateDict, err = module.Join(dicts...)
	for i := range v.of {
		r := v.parts[i]
		if err == nil { // the memory stays charged to the publisher of the part
			joined.partCharges = append(joined.partCharges, r.charge)
			r.charge = charge{}
		}
		err = errors.Join(err, r.Close())
	}
	if err != nil {
		return nil, errors.Join(err, joined.Close())
	}
	return joined, nil
}

// list describes the incomplete versions, sorted by name. If sees is not nil, it selects the names.
func (t *incompletes) list(sees func(name string) bool) (list []message.Incomplete) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(t.by)) {
		if sees != nil && !sees(name) {
			continue
		}
		if len(list) == maxIncomplete {
			break
		}
		v := t.by[name]
		out := message.Incomplete{Name: name, Of: uint64(v.of), StartedAt: v.begun.UnixNano(), EndsAt: v.ends.UnixNano(), Key: v.key, Bytes: uint64(v.bytes)}
		for _, i := range slices.Sorted(maps.Keys(v.parts)) {
			out.Parts = append(out.Parts, uint64(i))
		}
		list = append(list, out)
	}
	return list
}

// part is one part of a published version.
type part struct {
	*transfer.Export     // the answer to readers of the part; it borrows from that of the whole
	from, to         int // positions of its tensors in the whole
}

// encodeParts encodes the answers to readers of the parts.
func (r *record) encodeParts() error {
	whole, claimed := r.StateDict.ClaimedDigest()
	at := 0
	for i := range r.Parts {
		sd := r.StateDict.Under(partPrefix(i))
		n := sd.Len()
		out, err := r.export.Part(sd)
		err = errors.Join(err, sd.Close())
		if err == nil && n == 0 {
			err = fmt.Errorf("%w: part %d has no tensors", status.ErrPart, i)
		}
		if err != nil {
			return err
		}
		if claimed {
			out.Digest = whole[:]
		}
		if err := out.Encode(r.Origin.Source); err != nil {
			return err
		}
		r.parts = append(r.parts, part{out, at, at + n})
		at += n
	}
	return nil
}

// part returns a part of the version, or the whole if p is nil. Errors are [status.ErrPart].
func (r *record) part(version uint64, p *message.Part) (part, error) {
	switch {
	case p == nil:
		return part{r.export, 0, r.StateDict.Len()}, nil
	case r.Parts == 0:
		return part{}, fmt.Errorf("%w: version %d of %q is not made of parts", status.ErrPart, version, r.Name)
	case p.Of != 0 && p.Of != uint64(r.Parts):
		return part{}, fmt.Errorf("%w: version %d of %q is made of %d parts, not %d", status.ErrPart, version, r.Name, r.Parts, p.Of)
	case p.Index >= uint64(r.Parts):
		return part{}, fmt.Errorf("%w: version %d of %q has the parts 0 to %d, not %d", status.ErrPart, version, r.Name, r.Parts-1, p.Index)
	}
	return r.parts[p.Index], nil
}
