package bins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Summary describes one namespace of bins or one queue.
type Summary struct {
	// Namespace is the name of the namespace or queue.
	Namespace string `json:"namespace"`
	// Kind is "bins" or "queue".
	Kind string `json:"kind"`
	// Bins is the number of bins, or of topics with items.
	Bins int `json:"bins"`
	// Items and Bytes describe the stream. Larger bodies are in the object store and are counted in Beside.
	Items  uint64 `json:"items"`
	Bytes  uint64 `json:"bytes"`
	Beside uint64 `json:"beside_bytes"`
	// Limit is the limit of Bytes, and also of Beside.
	Limit int64 `json:"limit_bytes"`
}

// Survey returns the namespaces of bins and the queues of a server or cluster, by name.
func Survey(ctx context.Context, conn *nats.Conn) ([]Summary, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("list the namespaces of bins: %w", err)
	}
	var list []Summary
	err = natslink.Ask(ctx, func(ctx context.Context) (err error) {
		list, err = survey(ctx, js)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the namespaces of bins: %w", err)
	}
	slices.SortFunc(list, func(a, b Summary) int { return strings.Compare(a.Kind+a.Namespace, b.Kind+b.Namespace) })
	return list, nil
}

// Drop removes a namespace of bins with all its items. The error is [ErrNotFound] if it does not exist. Clients that have it
// open fail until they open it again.
func Drop(ctx context.Context, conn *nats.Conn, namespace string) error {
	return drop(ctx, conn, "BINS_"+namespace, namespace)
}

// DropQueue removes a queue with all its items, as [Drop] does.
func DropQueue(ctx context.Context, conn *nats.Conn, queue string) error {
	return drop(ctx, conn, "QUEUE_"+queue, queue)
}

func drop(ctx context.Context, conn *nats.Conn, stream, name string) error {
	js, err := jetstream.New(conn)
	if err != nil {
		return fmt.Errorf("drop %q: %w", name, err)
	}
	missing := false
	for i, one := range []string{stream, "OBJ_" + stream} {
		err := natslink.Ask(ctx, func(ctx context.Context) error {
			err := js.DeleteStream(ctx, one)
			if errors.Is(err, jetstream.ErrStreamNotFound) {
				missing = missing || i == 0
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("drop %q: %w", name, err)
		}
	}
	if missing {
		return fmt.Errorf("drop %q: %w: there is no such namespace", name, ErrNotFound)
	}
	return nil
}

// survey lists them once, in any order.
func survey(ctx context.Context, js jetstream.JetStream) (list []Summary, err error) {
	beside := map[string]uint64{}
	infos := js.ListStreams(ctx)
	for info := range infos.Info() {
		if bucket, ok := strings.CutPrefix(info.Config.Name, "OBJ_"); ok {
			beside[bucket] = info.State.Bytes
			continue
		}
		kind, name := "bins", ""
		name, ok := strings.CutPrefix(info.Config.Name, "BINS_")
		if !ok {
			kind = "queue"
			if name, ok = strings.CutPrefix(info.Config.Name, "QUEUE_"); !ok {
				continue
			}
		}
		list = append(list, Summary{
			Namespace: name, Kind: kind, Bins: int(info.State.NumSubjects), Items: info.State.Msgs, Bytes: info.State.Bytes,
			Limit: info.Config.MaxBytes,
		})
	}
	if err := infos.Err(); err != nil {
		return nil, err
	}
	for i := range list {
		if list[i].Kind == "bins" {
			if err := list[i].leaveOutClaims(ctx, js); err != nil {
				return nil, err
			}
		}
		bucket := "BINS_" + list[i].Namespace
		if list[i].Kind == "queue" {
			bucket = "QUEUE_" + list[i].Namespace
		}
		list[i].Beside = beside[bucket]
	}
	return list, nil
}

// leaveOutClaims subtracts the messages that are not items.
func (s *Summary) leaveOutClaims(ctx context.Context, js jetstream.JetStream) error {
	stream, err := js.Stream(ctx, "BINS_"+s.Namespace)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // removed since it was listed
	}
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(claimRoot+s.Namespace+".>"))
	if err != nil {
		return err
	}
	claims := len(info.State.Subjects)
	s.Bins, s.Items = max(0, s.Bins-claims), s.Items-min(s.Items, uint64(claims))
	return nil
}
