package command

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// inspect shows the digest that the owner computes for publish --digests.
func TestInspectShowsOwnerDigest(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	p.serve("other=" + path)
	require.NotContains(t, p.must("inspect", "other"), "\ndigest ")
	p.must("publish", "--digests", "m="+path)
	var d description
	eventually(t, "the digest is computed", func() bool {
		d = p.described("m")
		return d.Digest != nil
	})
	require.Equal(t, endpoint.DigestComputed, d.DigestState)
	want := wholeDigest(t, path)
	require.Equal(t, want, *d.Digest)
	require.Contains(t, p.must("inspect", "m"), "\ndigest   "+want.String()+", computed by the owner\n")
}

// serve --digests computes digests of the owner's models.
func TestServeComputesDigests(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	path := p.model("m.safetensors", 1)
	p.serve("--digests", "m="+path)
	eventually(t, "the digest is computed", func() bool { return p.described("m").Digest != nil })
	require.Equal(t, wholeDigest(t, path), *p.described("m").Digest)
}

// wholeDigest returns the digest of the whole file.
func wholeDigest(t *testing.T, path string) module.Digest {
	t.Helper()
	dev, err := cli.OpenHost()
	require.NoError(t, err)
	defer dev.Close()
	sd, err := module.Load(context.Background(), dev, path, module.LoadOptions{})
	require.NoError(t, err)
	defer sd.Close()
	whole, err := module.StateDictDigest(context.Background(), sd, 0)
	require.NoError(t, err)
	return whole
}

// inspect shows pending digests as such.
func TestDescriptionPendingDigests(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	d := description{Name: "m", Version: 1, DigestState: endpoint.DigestPending}
	require.NoError(t, d.print(&text))
	require.Contains(t, text.String(), "\ndigest   pending\n")
}
