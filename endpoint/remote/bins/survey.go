package bins

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// Summary is what one namespace of bins, or one queue, holds.
type Summary struct {
	// Namespace is the name of the namespace or queue.
	Namespace string `json:"namespace"`
	// Kind is "bins" or "queue".
	Kind string `json:"kind"`
	// Bins counts bins, or topics that have items.
	Bins int `json:"bins"`
	// Items and Bytes are those of the stream; larger bodies lie beside it and are counted in Beside.
	Items  uint64 `json:"items"`
	Bytes  uint64 `json:"bytes"`
	Beside uint64 `json:"beside_bytes"`
	// Limit is the bound of Bytes, and of Beside.
	Limit int64 `json:"limit_bytes"`
}

// Survey lists the namespaces of bins and the queues that a server or cluster holds, by name.
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
		bucket := "BINS_" + list[i].Namespace
		if list[i].Kind == "queue" {
			bucket = "QUEUE_" + list[i].Namespace
		}
		list[i].Beside = beside[bucket]
	}
	return list, nil
}
