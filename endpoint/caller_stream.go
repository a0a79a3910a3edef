package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/calls"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire"
)

// Stream calls an endpoint that returns a stream of results. Each pair is either a function that decodes the result
// into a pointer, once and before the next pair, or an error, which is the last. A result that is not decoded is
// dropped. Leaving the loop, or the end of ctx, cancels the function at the owner. The function [Stream] has typed
// results.
func (c *caller) Stream(ctx context.Context, name string, in any) iter.Seq2[func(out any) error, error] {
	return func(yield func(func(any) error, error) bool) {
		left := false
		err := c.to.streaming(ctx, name, in, func(ctx context.Context, s *calls.Stream) error {
			item := streamItem{of: s, name: name}
			defer item.drop()
			decode := item.decode
			for !left {
				err := waiting(ctx, func() (err error) {
					item.frame, err = s.Next(ctx)
					return err
				})
				if errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				item.there = true
				left = !yield(decode, nil)
				item.drop()
			}
			return item.failed // interceptors receive the error
		})
		if err != nil && !left {
			yield(nil, err)
		}
	}
}

// streamItem is a result that is ready to be decoded.
type streamItem struct {
	of     *calls.Stream
	name   string
	frame  wire.Frame
	there  bool
	failed error // error of the first failed decode
}

var errItemTaken = errors.New("a result of a stream is decoded once, before the next")

// decode decodes the item into out.
func (i *streamItem) decode(out any) error {
	if !i.there {
		return fmt.Errorf("stream %s: %w: %w", status.Shown(i.name), status.ErrInvalid, errItemTaken)
	}
	i.there = false
	if err := i.of.Take(i.frame, out); err != nil {
		i.failed = fmt.Errorf("stream %s: %w", status.Shown(i.name), err)
		return i.failed
	}
	return nil
}

// drop releases an item that was not decoded.
func (i *streamItem) drop() {
	if i.there {
		i.there = false
		_ = i.of.Take(i.frame, nil) // best effort: the item is discarded
	}
}
