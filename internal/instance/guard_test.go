// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestGuardDeleteCancelsLaunch(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	guard := NewGuard()
	ctx, release, ok := guard.AcquireLaunch(t.Context(), "uid")
	g.Expect(ok).To(BeTrue())
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		ended <- context.Cause(ctx)
		release()
	}()
	done, ok := guard.AcquireDelete(t.Context(), "uid")
	g.Expect(ok).To(BeTrue())
	g.Expect(<-ended).To(MatchError(ErrClaimDeleting))
	_, _, ok = guard.AcquireLaunch(t.Context(), "uid")
	g.Expect(ok).To(BeFalse(), "no launch while a delete holds the claim")
	done()
	g.Expect(guard.entries).To(BeEmpty(), "entries of released claims are removed")
}

func TestGuardAcquireDeleteTimeout(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	guard := NewGuard()
	_, release, ok := guard.AcquireLaunch(t.Context(), "uid")
	g.Expect(ok).To(BeTrue())
	_, _, ok = guard.AcquireLaunch(t.Context(), "uid")
	g.Expect(ok).To(BeFalse(), "one launch at a time")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, ok = guard.AcquireDelete(ctx, "uid")
	g.Expect(ok).To(BeFalse())
	release()
	g.Expect(guard.entries).To(BeEmpty())
}
