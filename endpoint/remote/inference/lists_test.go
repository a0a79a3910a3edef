package inference

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Lists keep a first dimension of 1 if all lists of the request have it.
func TestListsKeepABatchOfOne(t *testing.T) {
	t.Parallel()
	m := &model{
		inputs:  []port{{name: "a", kind: listPort}, {name: "b", kind: listPort}, {name: "x", kind: tensorPort}},
		outputs: []port{{name: "names", kind: listPort}, {name: "count", kind: scalarPort}, {name: "y", kind: tensorPort}},
	}
	for _, c := range []struct {
		name   string
		inputs []inputTensor
		want   []int64
	}{
		{"both", []inputTensor{{name: "a", shape: []int64{1, 3}}, {name: "b", shape: []int64{1, 3}}}, []int64{1, 2}},
		{"beside a tensor", []inputTensor{{name: "x", shape: []int64{4}}, {name: "a", shape: []int64{1, 3}}}, []int64{1, 2}},
		{"one of two", []inputTensor{{name: "a", shape: []int64{1, 3}}, {name: "b", shape: []int64{3}}}, []int64{2}},
		{"several rows", []inputTensor{{name: "a", shape: []int64{2, 3}}}, []int64{2}},
		{"three dimensions", []inputTensor{{name: "a", shape: []int64{1, 1, 3}}}, []int64{2}},
		{"no list", []inputTensor{{name: "x", shape: []int64{1, 3}}}, []int64{2}},
	} {
		list := outputs{{name: "names", shape: []int64{2}}, {name: "count", shape: []int64{1}}, {name: "y", shape: []int64{5}}}
		list.setBatchOfOne(m, c.inputs)
		require.Equal(t, c.want, list[0].shape, c.name)
		require.Equal(t, []int64{1}, list[1].shape, c.name)
		require.Equal(t, []int64{5}, list[2].shape, c.name)
	}
}
