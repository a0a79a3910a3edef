package jsonrpc_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
)

// Nothing outside the folder is published, whatever leads there, also if a link and a file change places all the time.
func TestPublishFromStaysInTheFolder(t *testing.T) {
	path, file := remotetest.TiedFile(t)
	root := filepath.Dir(path)
	outside := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, os.WriteFile(outside, file, 0o600))
	owner := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, owner.Socket, "--publish-root", root)
	gw.Attached(t)
	for folder, link := range map[string]string{"model": "model.safetensors", "shard": "one.safetensors"} {
		dir := filepath.Join(root, folder)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.Symlink(outside, filepath.Join(dir, link)))
		index := `{"weight_map":{"lm_head":"one.safetensors","norm":"one.safetensors","wte/weight":"one.safetensors"}}`
		require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.index.json"), []byte(index), 0o600))
		bad := failed(t, gw, "publish_from", map[string]string{"name": folder, "path": folder})
		require.Equal(t, -32007, bad.Code, bad.Message)
		require.NotContains(t, bad.Message, root)
	}

	inside := filepath.Join(root, "swapped.safetensors")
	header := `{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`
	one := append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header+"x"...)
	require.NoError(t, os.WriteFile(inside, one, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "link")))
	stop, swapped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				swapped <- nil
				return
			default:
			}
			if err := unix.Renameat2(unix.AT_FDCWD, inside, unix.AT_FDCWD, filepath.Join(root, "link"), unix.RENAME_EXCHANGE); err != nil {
				swapped <- err
				return
			}
		}
	}()
	for range 200 {
		a := call(t, gw, "publish_from", map[string]string{"name": "m", "path": "swapped.safetensors"})
		if a.Error == nil {
			require.Contains(t, string(a.Result), `"tensors":1`, "the file outside has three")
		}
	}
	close(stop)
	require.NoError(t, <-swapped)
}
