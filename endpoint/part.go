package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/client"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// Part identifies one part of a version that several publishers publish together, such as the tensors of one rank of an
// engine. The zero value is the whole version.
type Part struct {
	// Index is the number of the part, from 0. Of is the number of parts, 1,024 at most.
	Index, Of int
	// Key identifies the parts that belong together, such as a training step: parts with different keys are not joined
	// ([ErrPart]). It may be empty, and has 256 bytes at most. Readers leave it empty.
	Key string
}

// IncompleteInfo describes a version that waits for parts ([PublishOptions.Part]). It cannot be acquired.
type IncompleteInfo struct {
	// Of is the number of parts. Parts lists those that are published, sorted.
	Of    int   `json:"of"`
	Parts []int `json:"parts"`
	// Bytes is the size of their tensors.
	Bytes int64 `json:"bytes"`
	// StartedAt is the time of the first part, and EndsAt when the version expires.
	StartedAt time.Time `json:"started_at"`
	EndsAt    time.Time `json:"ends_at"`
	// Key is that of the parts.
	Key string `json:"key,omitempty"`
}

// wirePart returns the wire form of a part; nil for the whole version. It refuses parts that the owner would refuse, and
// owners that do not support parts. If wait is true, it waits for an owner.
func wirePart(ctx context.Context, conn *client.Client, wait bool, p Part) (*message.Part, error) {
	if p == (Part{}) {
		return nil, nil
	}
	if p.Of < 1 || p.Index < 0 || p.Index >= p.Of {
		return nil, fmt.Errorf("%w: part %d of %d: parts count from 0", ErrPart, p.Index, p.Of)
	}
	connect := conn.ForRequest
	if wait {
		connect = conn.Connected
	}
	l, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	if !l.Parts {
		return nil, fmt.Errorf("%w: the owner's version does not support parts of versions", errors.ErrUnsupported)
	}
	return &message.Part{Index: uint64(p.Index), Of: uint64(p.Of), Key: p.Key}, nil
}

// decodeIncomplete converts a description from its wire form.
func decodeIncomplete(in message.Incomplete) *IncompleteInfo {
	out := &IncompleteInfo{
		Of: int(min(in.Of, math.MaxInt32)), Parts: []int{}, Bytes: clampBytes(in.Bytes), StartedAt: loadTime(in.StartedAt), EndsAt: loadTime(in.EndsAt), Key: in.Key,
	}
	for _, i := range in.Parts {
		out.Parts = append(out.Parts, int(min(i, math.MaxInt32)))
	}
	return out
}
