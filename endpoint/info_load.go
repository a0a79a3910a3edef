package endpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/sharedtensor/sharedtensor/endpoint/internal/status"
	"github.com/sharedtensor/sharedtensor/wire/message"
)

// LoadState is the state of a version that an owner is loading.
type LoadState string

// The states of a load.
const (
	// LoadWaiting means that the load waits for earlier ones.
	LoadWaiting LoadState = "waiting"
	// LoadRunning means that bytes are being loaded.
	LoadRunning LoadState = "loading"
	// LoadFailed means that the load failed. It is listed until the name is loaded again or published.
	LoadFailed LoadState = "failed"
)

// LoadInfo describes a version that an owner is loading, at one moment.
type LoadInfo struct {
	// State is the state of the load.
	State LoadState `json:"state"`
	// Done and Total are in bytes. Total is 0 until it is known.
	Done  int64 `json:"done_bytes"`
	Total int64 `json:"total_bytes"`
	// StartedAt is the time of the first read; zero before.
	StartedAt time.Time `json:"started_at,omitzero"`
	// UpdatedAt is the time when Done was last updated or the load failed; zero before the start.
	UpdatedAt time.Time `json:"updated_at,omitzero"`
	// Source is the origin of the tensors, for people. It may be empty.
	Source string `json:"source,omitempty"`
	// Error is the reason of a failure, for people.
	Error string `json:"error,omitempty"`

	err error
}

// Err returns the reason of a failure, for which errors.Is matches the same sentinels as at the owner. It returns nil
// in other states.
func (l *LoadInfo) Err() error { return l.err }

// UnmarshalJSON parses the JSON of a LoadInfo. Err then has only the text.
func (l *LoadInfo) UnmarshalJSON(data []byte) error {
	type plain LoadInfo
	if err := json.Unmarshal(data, (*plain)(l)); err != nil {
		return err
	}
	if l.err = nil; l.Error != "" {
		l.err = errors.New(l.Error)
	}
	return nil
}

// BytesPerSecond returns the average speed since the start, or 0 if it is unknown.
func (l *LoadInfo) BytesPerSecond() float64 {
	seconds := l.UpdatedAt.Sub(l.StartedAt).Seconds()
	if l.StartedAt.IsZero() || seconds <= 0 || l.Done <= 0 {
		return 0
	}
	return float64(l.Done) / seconds
}

// decodeLoading converts a load's description from its wire form. It returns nil for nil.
func decodeLoading(in *message.Loading) *LoadInfo {
	if in == nil {
		return nil
	}
	out := &LoadInfo{
		State: LoadRunning, Done: clampBytes(in.Done), Total: clampBytes(in.Total), StartedAt: loadTime(in.StartedAt), UpdatedAt: loadTime(in.UpdatedAt),
		Source: in.Source,
	}
	switch in.State {
	case message.LoadWaiting:
		out.State = LoadWaiting
	case message.LoadFailed:
		out.State = LoadFailed
		if in.Error != nil {
			out.err = status.DecodeError(in.Error)
			out.Error = out.err.Error()
		}
	}
	return out
}

// loadTime converts a time from its wire form; 0 is the zero time.
func loadTime(nanoseconds int64) time.Time {
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// clampBytes converts a peer's byte count and clamps it to the range of int64.
func clampBytes(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// decodeList converts a list from its wire form, sorted: published names, and names that are only being loaded or have
// only versions that are not adopted.
func decodeList(in *message.Listed) []ModelInfo {
	list := make([]ModelInfo, 0, len(in.Models)+len(in.Loading))
	at := map[string]int{}
	for _, m := range in.Models {
		at[m.Name] = len(list)
		list = append(list, decodeInfo(m))
	}
	named := func(name string) *ModelInfo {
		index, known := at[name]
		if !known {
			index = len(list)
			at[name] = index
			list = append(list, ModelInfo{Name: name, Versions: []VersionInfo{}})
		}
		return &list[index]
	}
	for i := range in.Loading {
		named(in.Loading[i].Name).Loading = decodeLoading(&in.Loading[i])
	}
	for _, v := range in.NotAdopted {
		m := named(v.Name)
		m.NotAdopted = append(m.NotAdopted, decodeNotAdopted(v))
	}
	for _, v := range in.Incomplete {
		named(v.Name).Incomplete = decodeIncomplete(v)
	}
	if len(in.Loading)+len(in.NotAdopted)+len(in.Incomplete) > 0 {
		slices.SortStableFunc(list, func(a, b ModelInfo) int { return cmp.Compare(a.Name, b.Name) })
	}
	return list
}
