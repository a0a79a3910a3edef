package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/wire"
)

// One account never fills the budget. The next one finds room.
func TestBudgetLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	b := NewBudget("descriptors", 30, 0)
	greedy, other := b.Account(), b.Account()
	require.NoError(t, greedy.Take(12))
	require.ErrorIs(t, greedy.Take(12), wire.ErrBudget) // the rest would be less than half as much
	require.NoError(t, other.Take(10))
	require.Equal(t, BudgetUse{Used: 22, Limit: 30, Refused: 1}, b.Use())
	other.Give(10)
	greedy.Give(12)
	require.NoError(t, greedy.Take(12))
	b.refuse()
	require.Equal(t, BudgetUse{Used: 12, Limit: 30, Refused: 2}, b.Use())
}

// each limits one account that holds something already.
func TestBudgetLimitsEachAccount(t *testing.T) {
	t.Parallel()
	b := NewBudget("bytes", 1000, 10)
	a := b.Account()
	require.NoError(t, a.Take(20), "a first amount may be larger")
	require.ErrorIs(t, a.Take(1), wire.ErrBudget)
	require.NoError(t, b.Account().Take(10))
}

// Each connection has an account for each resource. Nil budgets and accounts count nothing.
func TestTotalsCharged(t *testing.T) {
	t.Parallel()
	totals := Totals{Files: NewBudget("descriptors", 10, 0), Bodies: NewBudget("bytes", 100, 0), Rings: NewBudget("bytes of rings", 1000, 0)}
	first, second := totals.charged(wire.Limits{Files: 7}), totals.charged(wire.Limits{})
	require.Equal(t, 7, first.Files)
	for of, b := range map[wire.Resource]*Budget{wire.ResourceFiles: totals.Files, wire.ResourceBodies: totals.Bodies, wire.ResourceRings: totals.Rings} {
		limit := b.Use().Limit
		require.NoError(t, first.Charge(of, limit/2))
		require.ErrorIs(t, first.Charge(of, limit/2), wire.ErrBudget)
		require.NoError(t, second.Charge(of, limit/4))
		require.Equal(t, limit/2+limit/4, b.Use().Used)
		require.NoError(t, first.Charge(of, -limit/2))
		require.NoError(t, second.Charge(of, -limit/4))
		require.Zero(t, b.Use().Used)
	}
	var none *Budget
	require.Zero(t, none.Use())
	var account *Account
	require.NoError(t, account.Take(1<<40))
	account.Give(1 << 40)
}
