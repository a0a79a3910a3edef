package mirror

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/internal/store"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// Limits of a manifest.
const (
	maxManifestBytes = 64 << 20
	maxTensors       = 1 << 20
)

// manifestJSON is the JSON of a gateway's manifest. Its URLs are ignored because the paths are fixed.
type manifestJSON struct {
	Name     string            `json:"name"`
	Version  uint64            `json:"version"`
	ServerID string            `json:"server_id"`
	Tensors  []tensorJSON      `json:"tensors"`
	Metadata map[string]string `json:"metadata"`
}

type tensorJSON struct {
	Name   string       `json:"name"`
	DType  string       `json:"dtype"`
	Shape  tensor.Shape `json:"shape"`
	Bytes  int64        `json:"bytes"`
	TiedTo string       `json:"tied_to"`
	SHA256 string       `json:"sha256"`
}

// manifest is a validated manifest.
type manifest struct {
	version  uint64
	server   string
	tensors  []tensorEntry
	metadata map[string]string
	bytes    int64 // size of all tensors that are not tied to another
	digested bool  // the digests of the tensors are known
}

// tensorEntry describes one tensor.
type tensorEntry struct {
	module.NamedSpec
	bytes  int64
	digest module.Digest // for tied names, the digest of the tensor that they are tied to
}

// parseManifest validates a manifest before memory is allocated for it. The fields of a tensor must agree, names must
// be unique, ties must refer to an earlier tensor of the same kind, and the total size must not exceed limit bytes.
func parseManifest(text []byte, limit int64) (*manifest, error) {
	var raw manifestJSON
	if err := json.Unmarshal(text, &raw); err != nil {
		return nil, fmt.Errorf("%w: the manifest: %w", ErrSource, err)
	}
	if len(raw.Tensors) > maxTensors {
		return nil, fmt.Errorf("%w: the manifest has %d tensors", ErrTooLarge, len(raw.Tensors))
	}
	if raw.Version == 0 {
		return nil, fmt.Errorf("%w: the manifest has no version", ErrSource)
	}
	m := &manifest{version: raw.Version, server: raw.ServerID, tensors: make([]tensorEntry, 0, len(raw.Tensors)), metadata: raw.Metadata, digested: true}
	byName := make(map[string]int, len(raw.Tensors))
	for i := range raw.Tensors {
		one, err := m.entry(&raw.Tensors[i], byName)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", store.Shortened(raw.Tensors[i].Name), err)
		}
		// The gaps in the slab count too; otherwise a million empty tensors would have size 0.
		if m.bytes += one.bytes; one.TiedTo == "" && one.bytes > limit-(m.bytes-one.bytes)-int64(i)*module.Alignment {
			return nil, fmt.Errorf("%w: more than %d bytes; see --max-model", ErrTooLarge, limit)
		}
		if one.TiedTo != "" {
			m.bytes -= one.bytes
		}
		byName[one.Name] = i
		m.tensors = append(m.tensors, one)
	}
	return m, nil
}

// entry validates one tensor.
func (m *manifest) entry(raw *tensorJSON, byName map[string]int) (out tensorEntry, err error) {
	dt, err := tensor.ParseDType(raw.DType)
	if err != nil {
		return out, fmt.Errorf("%w: %w", ErrSource, err)
	}
	out.NamedSpec = module.NamedSpec{Name: raw.Name, DType: dt, Shape: raw.Shape, TiedTo: raw.TiedTo}
	if out.bytes, err = (tensor.Spec{DType: dt, Shape: raw.Shape}).ByteLen(); err != nil {
		return out, fmt.Errorf("%w: %w", ErrSource, err)
	}
	if _, twice := byName[raw.Name]; twice || raw.Name == "" {
		return out, fmt.Errorf("%w: empty or duplicate name", ErrSource)
	}
	if raw.Bytes != out.bytes {
		return out, fmt.Errorf("%w: %v of shape %v has %d bytes, the manifest has %d", ErrSource, dt, raw.Shape, out.bytes, raw.Bytes)
	}
	if raw.TiedTo != "" {
		return out, m.tie(&out, byName)
	}
	digest, err := hex.DecodeString(raw.SHA256)
	if err != nil || len(digest) != sha256.Size {
		return out, fmt.Errorf("%w: no SHA-256", ErrSource)
	}
	copy(out.digest[:], digest)
	return out, nil
}

func (m *manifest) tie(out *tensorEntry, byName map[string]int) error {
	at, found := byName[out.TiedTo]
	if !found || m.tensors[at].DType != out.DType || !m.tensors[at].Shape.Equal(out.Shape) || m.tensors[at].TiedTo != "" {
		return fmt.Errorf("%w: tied to %q, which is not an earlier tensor of the same type and shape", ErrSource, store.Shortened(out.TiedTo))
	}
	out.digest = m.tensors[at].digest
	return nil
}

// specs returns the specs from which a state dict is created.
func (m *manifest) specs() []module.NamedSpec {
	out := make([]module.NamedSpec, len(m.tensors))
	for i := range m.tensors {
		out[i] = m.tensors[i].NamedSpec
	}
	return out
}

// digest returns the digest of the whole model as module.StateDictDigest computes it. The digests of the tensors must
// be known.
func (m *manifest) digest() module.Digest {
	order := make([]int, len(m.tensors))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(m.tensors[a].Name, m.tensors[b].Name) })
	h := sha256.New()
	for _, i := range order {
		t := &m.tensors[i]
		fmt.Fprintf(h, "%d:%s %v %v ", len(t.Name), t.Name, t.DType, []int64(t.Shape))
		h.Write(t.digest[:])
	}
	return module.Digest(h.Sum(nil))
}
