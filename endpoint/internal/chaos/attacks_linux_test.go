package chaos_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/wire"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// attack is one way to make an owner use more memory than it should.
type attack struct {
	name, what string
	// Limits of the owner: descriptors, address space in addition to that at its start, and bytes of its control group.
	// 0 means no limit.
	files, address, group uint64
	run                   func(*attacker) error
	// peak and kept are the maximum growth, in MiB, of an owner with 1 GiB of memory, at its peak and after the attack.
	// They apply to the scale of the test.
	peak, kept int64
}

// attacks lists all attacks.
var attacks = []attack{
	{name: "unread", what: "24 clients request a manifest of 56 MB 4 times each and do not read it", run: unread, peak: 700, kept: 150},
	{name: "manifests", what: "6 publications of 1,000,000 tensors in 4 KiB by a publisher that leaves", run: manifests, peak: 500, kept: 32},
	{name: "sources", what: "8 publications with a source of 16 MiB each", run: sources, peak: 500, kept: 32},
	{name: "names", what: "8 clients watch 400,000 names of 100 bytes each, and release as many objects", run: names, peak: 600, kept: 32},
	{name: "descriptors", what: "5 clients send descriptors ahead of a frame that never ends; RLIMIT_NOFILE 1024", files: 1024, run: descriptors, peak: 100, kept: 32},
	{name: "results", what: "40 calls with cached results of 64 MiB each; 1 GiB of address space", address: 1 << 30, run: results, peak: 1100, kept: 1100},
	{name: "results-group", what: "the same in a control group of 1 GiB", group: 1 << 30, run: results, peak: 400, kept: 400},
	{name: "managed", what: "a client keeps as many references to managed results of 64 MiB as possible; 1 GiB of address space", address: 1 << 30, run: managed, peak: 1100, kept: 32},
	{name: "objects", what: "4 clients keep as many references to managed results of 64 MiB as possible, and do not read a stream of them", run: objects, peak: 1024 + 4*64 + 40, kept: 32},
	{name: "labels", what: "40 clients connect with a label of 32 MiB", run: labels, peak: 500, kept: 32},
	{name: "sparse", what: "a sparse file of 1 TiB is published, and one of 2 GiB is passed to a function that reads it", run: sparse, peak: 100, kept: 32},
	{name: "bodies", what: "60 clients send 32 MiB as the arguments of calls that do not end, 4 times each", run: waiting, peak: 950, kept: 32},
	{name: "halves", what: "60 clients send the first 48 MiB of a frame of 60 MiB", run: halves, peak: 600, kept: 32},
	{name: "errors", what: "4 clients submit 200 tasks each that fail with a text of 1 MiB", run: failures, peak: 500, kept: 48},
	{name: "pings", what: "8 clients send requests as fast as they can, and do not read the answers", run: pings, peak: 100, kept: 32},
	{name: "silence", what: "2000 connections that send nothing", run: silence, peak: 100, kept: 32},
}

// unread sends requests and does not read the answers.
func unread(a *attacker) error {
	fd, h, err := memory(4096)
	if err != nil {
		return err
	}
	c, err := dial(a.Socket)
	if err != nil {
		return err
	}
	a.conns = append(a.conns, c)
	if err := c.handshake("publisher"); err != nil {
		return err
	}
	if err := c.request(message.OpPublish, publication("large", h, a.scaled(250_000), 200), fd); err != nil {
		return err
	}
	kind, body, err := c.receive(30 * time.Second)
	if err != nil {
		return err
	}
	a.note("publish: " + describe(kind, body))
	a.each(24, func(_ int, c *raw) error {
		for range 4 {
			if err := c.request(message.OpAcquire, message.Acquire{Name: "large"}); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// manifests publishes large manifests with little memory.
func manifests(a *attacker) error {
	fd, h, err := memory(4096)
	if err != nil {
		return err
	}
	a.each(1, func(_ int, c *raw) error {
		for i := range 6 {
			if err := a.answered(c, message.OpPublish, publication(fmt.Sprintf("tiny-%d", i), h, a.scaled(1_000_000), 7), fd); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// answered sends a request, waits for the answer and records it.
func (a *attacker) answered(c *raw, op message.Op, value any, files ...int) error {
	if err := c.request(op, value, files...); err != nil {
		return err
	}
	kind, body, err := c.receive(30 * time.Second)
	if err == nil {
		a.note(describe(kind, body))
	}
	return err
}

// sources publishes with a long source text.
func sources(a *attacker) error {
	fd, h, err := memory(4096)
	if err != nil {
		return err
	}
	a.each(1, func(_ int, c *raw) error {
		for i := range 8 {
			p := publication(fmt.Sprintf("source-%d", i), h, 1, 4)
			p.Source = strings.Repeat("s", 16<<20)
			if err := a.answered(c, message.OpPublish, p, fd); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// names sends long lists.
func names(a *attacker) error {
	a.each(8, func(i int, c *raw) error {
		list := make([]string, a.scaled(400_000))
		for j := range list {
			list[j] = fmt.Sprintf("%0100d", i*len(list)+j)
		}
		if err := c.request(message.OpWatch, message.Watch{Names: list}); err != nil {
			return err
		}
		return c.request(message.OpObjectRelease, message.ReleaseObjects{IDs: list})
	})
	return nil
}

// descriptors sends descriptors ahead of frames that do not end.
func descriptors(a *attacker) error {
	fd, _, err := memory(4096)
	if err != nil {
		return err
	}
	files := make([]int, 100)
	for i := range files {
		files[i] = fd
	}
	a.each(5, func(_ int, c *raw) error {
		for range 10 {
			if err := c.frame(wire.KindFiles, 1, nil, len(files), files...); err != nil {
				return err
			}
		}
		return nil
	})
	go func() { // completes the frame slowly
		head := header(1<<20, wire.KindRequest, 0, 1)
		for i := 0; a.holding() && i < len(head); i++ {
			for _, c := range a.conns {
				_ = c.write(head[i:i+1], nil) // best effort: the end of the connection is recorded later
			}
			time.Sleep(a.Hold / 20)
		}
	}()
	return nil
}

// results fills the cache.
func results(a *attacker) error {
	a.each(1, func(_ int, c *raw) error {
		for i := range 40 {
			call, err := argument("zeros", i)
			if err != nil {
				return err
			}
			if err := a.answered(c, message.OpCall, call); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// managed holds references to managed results.
func managed(a *attacker) error {
	a.each(1, func(_ int, c *raw) error {
		for i := range 40 {
			call, err := argument("managed", i)
			if err != nil {
				return err
			}
			if err := a.answered(c, message.OpCall, call); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// objects runs several clients that hold references until the owner refuses more, and that do not read the items of a
// stream. A result counts only after its function has returned it, so each client can make the owner exceed the limit
// by one.
func objects(a *attacker) error {
	stream, err := argument("items", 1)
	if err != nil {
		return err
	}
	a.each(4, func(i int, c *raw) error {
		for j := range 20 {
			call, err := argument("managed", 100*i+j)
			if err != nil {
				return err
			}
			if err := a.answered(c, message.OpCall, call); err != nil {
				return err
			}
		}
		return c.request(message.OpStream, stream)
	})
	return nil
}

// labels connects clients with long labels.
func labels(a *attacker) error {
	label := strings.Repeat("l", 32<<20)
	for range a.scaled(40) {
		c, err := dial(a.Socket)
		if err != nil {
			return err
		}
		a.conns = append(a.conns, c)
		if err := c.handshake(label); err != nil {
			a.noteError(err)
			continue
		}
		a.note("hello")
	}
	return nil
}

// sparse passes sparse memory files.
func sparse(a *attacker) error {
	large, h, err := memory(1 << 40)
	if err != nil {
		return err
	}
	p := publication("sparse", h, 1, 4)
	a.each(1, func(_ int, c *raw) error { return a.answered(c, message.OpPublish, p, large) })
	const size = 2 << 30
	fd, h, err := memory(size)
	if err != nil {
		return err
	}
	arg, err := message.MarshalTagged(message.TagTensor, message.TensorRef{DType: 2, Shape: []int64{size}})
	if err != nil {
		return err
	}
	call, err := message.MarshalPayload(message.Call{Endpoint: "digest", Args: arg, Handles: []message.Handle{h}})
	if err != nil {
		return err
	}
	a.each(1, func(_ int, c *raw) error {
		if err := c.encoded(message.AppendRequest(nil, message.Request{Op: message.OpCall, Body: call}), fd); err != nil {
			return err
		}
		kind, body, err := c.receive(time.Minute)
		if err == nil {
			a.note("digest: " + describe(kind, body))
		}
		return err
	})
	return nil
}

// waiting keeps large requests in flight.
func waiting(a *attacker) error {
	call, err := argument("wait", strings.Repeat("w", 32<<20))
	if err != nil {
		return err
	}
	body, err := message.MarshalRequest(message.OpCall, 0, call)
	if err != nil {
		return err
	}
	a.each(a.scaled(60), func(_ int, c *raw) error {
		for range 4 {
			if err := c.encoded(body); err != nil {
				return err
			}
		}
		return nil
	})
	return nil
}

// halves sends frames that do not end.
func halves(a *attacker) error {
	part := make([]byte, 48<<20)
	a.each(a.scaled(60), func(_ int, c *raw) error {
		return errors.Join(c.write(header(60<<20, wire.KindRequest, 0, 1), nil), c.write(part, nil))
	})
	return nil
}

// failures leaves tasks with long error texts.
func failures(a *attacker) error {
	call, err := argument("fail", strings.Repeat("e", 1<<20))
	if err != nil {
		return err
	}
	body, err := message.MarshalRequest(message.OpSubmit, 0, call)
	if err != nil {
		return err
	}
	a.each(4, func(_ int, c *raw) error {
		for range a.scaled(200) {
			if err := c.encoded(body); err != nil {
				return err
			}
			kind, body, err := c.receive(10 * time.Second)
			if err != nil {
				return err
			}
			a.note(describe(kind, body))
		}
		return nil
	})
	return nil
}

// pings sends requests continuously and reads no answers.
func pings(a *attacker) error {
	body, err := message.MarshalRequest(message.OpPing, 0, message.Ping{})
	if err != nil {
		return err
	}
	a.each(8, func(_ int, c *raw) error {
		for a.holding() {
			if err := c.encoded(body); err != nil {
				if errors.Is(err, unix.EAGAIN) { // the owner has stopped reading, because its answers are not read
					return nil
				}
				return err
			}
		}
		return nil
	})
	return nil
}

// silence connects and sends nothing.
func silence(a *attacker) error {
	for range a.scaled(2000) {
		c, err := dial(a.Socket)
		if err != nil {
			return err
		}
		a.conns = append(a.conns, c)
	}
	for _, c := range a.conns {
		if _, _, err := c.receive(time.Millisecond); errors.Is(err, io.EOF) {
			a.note("hung up at once")
		}
	}
	return nil
}
