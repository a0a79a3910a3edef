package session

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sharedtensor/sharedtensor/wire"
)

// Budget limits a resource that all connections of a process share: descriptors or bytes. Each connection has an
// [Account]. An account may hold at most twice the amount that remains free: a single account gets two thirds of the
// budget, two get two fifths each, and some room always remains for the next. Its methods are safe for concurrent use.
// A nil *Budget is unlimited.
type Budget struct {
	what        string
	limit, each int64

	mu      sync.Mutex
	used    int64
	refused uint64
}

// budgetShare is the maximum ratio of one account to the free amount.
const budgetShare = 2

// NewBudget returns a budget of limit units. what is their plural noun, for errors. each limits one account; 0 means
// that only the share applies.
func NewBudget(what string, limit, each int64) *Budget {
	return &Budget{what: what, limit: limit, each: each}
}

// BudgetUse is a snapshot of a budget.
type BudgetUse struct {
	// Used is the amount counted, Limit its maximum. Each limits one account; 0 means no separate limit.
	Used, Limit, Each int64
	// Refused counts the requests that did not fit.
	Refused uint64
}

// Use returns a snapshot.
func (b *Budget) Use() BudgetUse {
	if b == nil {
		return BudgetUse{}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return BudgetUse{Used: b.used, Limit: b.limit, Each: b.each, Refused: b.refused}
}

// refuse counts one refusal whose reason lies outside the budget.
func (b *Budget) refuse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused++
}

// Account returns an empty account.
func (b *Budget) Account() *Account { return &Account{budget: b} }

// Account is the share of one connection in a [Budget]. A nil *Account counts nothing.
type Account struct {
	budget *Budget
	used   int64 // guarded by budget.mu
}

// Take adds n to the account. It returns a [wire.ErrBudget] with the reason if n does not fit.
func (a *Account) Take(n int64) error {
	if a == nil || a.budget == nil || n == 0 {
		return nil
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case a.used+n > budgetShare*(b.limit-b.used-n):
		b.refused++
		return fmt.Errorf("%w: %d %s more, this client has %d in flight, all together have %d, and there may be %d",
			wire.ErrBudget, n, b.what, a.used, b.used, b.limit)
	case b.each > 0 && a.used > 0 && a.used+n > b.each:
		b.refused++
		return fmt.Errorf("%w: %d %s more, this client has %d in flight and may have %d", wire.ErrBudget, n, b.what, a.used, b.each)
	}
	b.used += n
	a.used += n
	return nil
}

// Give subtracts n from the account.
func (a *Account) Give(n int64) {
	if a == nil || a.budget == nil || n == 0 {
		return
	}
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.budget.used -= n
	a.used -= n
}

// charged returns the limits of one connection, which charge accounts of the totals.
func (t *Totals) charged(l wire.Limits) wire.Limits {
	accounts := [...]*Account{
		wire.ResourceFiles: t.Files.Account(), wire.ResourceBodies: t.Bodies.Account(), wire.ResourceRings: t.Rings.Account(),
	}
	l.Charge = func(of wire.Resource, amount int64) error {
		if amount < 0 {
			accounts[of].Give(-amount)
			return nil
		}
		return accounts[of].Take(amount)
	}
	return l
}

// Reservation is the share that one request in flight has of the session's and the server's limits. The zero value
// reserves nothing.
type Reservation struct {
	total *atomic.Int64 // sum of the session's reservations
	bytes int64         // of this reservation
	// frame ends the charge of the request's descriptors and body to the server's budgets; nil for none.
	frame func()
}

// Release returns the reservation to the session's total and the server's budgets. It is called once.
func (l *Reservation) Release() {
	if l.total != nil {
		l.total.Add(-l.bytes)
	}
	if l.frame != nil {
		l.frame()
	}
}
