package command

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/cmd/sharedtensor/internal/cli"
	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/module"
)

func TestParseModels(t *testing.T) {
	t.Parallel()
	models, err := parseModels(newServeCommand(), []string{"a=b", "org/x y=c=d.safetensors"}, loadFlags{})
	require.NoError(t, err)
	require.Equal(t, []modelArg{{name: "a", path: "b"}, {name: "org/x y", path: "c=d.safetensors"}}, models)
	_, err = parseModels(newServeCommand(), []string{"a\n=b"}, loadFlags{})
	require.ErrorIs(t, err, cli.ErrUsage)
}

func TestSuggestName(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"llm.safetensors": "llm", "/m/llama-3": "llama-3", "x/model.safetensors.index.json": "model", ".": "NAME", "/": "NAME",
	} {
		require.Equal(t, want, suggestName(path), path)
	}
}

func TestOpenDevices(t *testing.T) {
	t.Parallel()
	dev, err := cli.OpenDevice("cpu")
	require.NoError(t, err)
	own := module.StorageSpec{Device: dev.Info().UUID, DeviceType: driver.CPU}
	require.NoError(t, dev.Close())
	devices, err := cli.OpenDevicesFor([]module.StorageSpec{own, own, {DeviceType: 99}})
	require.NoError(t, err)
	require.Len(t, devices, 1, "the client refuses unknown storages")
	require.NoError(t, cli.CloseDevices(devices))
	_, err = cli.OpenDevicesFor([]module.StorageSpec{{Device: driver.UUID{1}, DeviceType: driver.CUDA}})
	require.ErrorContains(t, err, "the tensors are on GPU 01000000-")
	_, err = cli.OpenDevice("gpu")
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = cli.UserIDs("--x", []uint{0, 1000})
	require.NoError(t, err)
}
