// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package tasks

import (
	"context"
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim/internal/clock"
)

func TestParseUPID(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	u := UPID{Host: "pve-1", PID: 14224, PStart: 0x53A7E, StartTime: 0x6AF9038E, Type: "download", ID: "a b:c/d.iso", User: "kubernetes@pve!karpenter"}
	got, ok := ParseUPID(u.String())
	g.Expect([]any{got, ok}).To(Equal([]any{u, true}))
	g.Expect((UPID{Host: "pve1", PID: 1, Type: "imgcopy", User: "root@pam"}).String()).To(Equal("UPID:pve1:00000001:00000000:00000000:imgcopy::root@pam:"))
	for _, bad := range []string{"", "foo", "UPID:pve1:1:2:3:qmstart:100:root@pam:", "UPID:pve1:00000001:00000000:00000000:qmstart:100:root@pam"} {
		_, ok := ParseUPID(bad)
		g.Expect(ok).To(BeFalse(), "%q was accepted", bad)
	}
}

func FuzzParseUPID(f *testing.F) {
	f.Add("UPID:pve1:00003790:00053A7E:6AF9038E:download:tiny.qcow2:kubernetes@pve!karpenter:")
	f.Fuzz(func(t *testing.T, s string) {
		if u, ok := ParseUPID(s); ok {
			if again, ok := ParseUPID(u.String()); !ok || again != u {
				t.Errorf("%q: %+v became %+v", s, u, again)
			}
		}
	})
}

func TestTaskExit(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	r := NewRegistry(t.Context(), clock.New(1), clock.NewGroup())
	for name, tc := range map[string]struct {
		work       Work
		exit, last string
	}{
		"ok":       {func(context.Context, *Task) error { return nil }, "OK", "TASK OK"},
		"error":    {func(context.Context, *Task) error { return errors.New("two\nlines") }, "two lines", "TASK ERROR: two lines"},
		"warnings": {func(_ context.Context, t *Task) error { t.Warnf("hm"); t.Warnf("hm"); return nil }, "WARNINGS: 2", "TASK WARNINGS: 2"},
	} {
		task := r.Start("pve1", "qmstart", "100", "root@pam", tc.work)
		<-task.Done()
		lines := task.Lines()
		g.Expect(task.State()).To(And(HaveField("Running", false), HaveField("Exit", tc.exit)), name)
		g.Expect(lines[len(lines)-1]).To(Equal(tc.last), name)
	}
	hang := func(ctx context.Context, _ *Task) error { <-ctx.Done(); return ctx.Err() }
	hanging := r.Start("pve2", "qmclone", "9000", "root@pam", hang)
	r.KillHost("pve2")
	g.Expect(hanging.State().Exit).To(Equal("unexpected status"), "after a loss of power")
	stopped := r.Start("pve2", "qmclone", "9000", "root@pam", hang)
	r.Stop(context.Background(), stopped)
	g.Expect(stopped.State().Exit).To(Equal("received interrupt"), "after a stop")
	g.Expect(r.List()).To(HaveLen(5))
	g.Expect(r.List()[0]).To(BeIdenticalTo(stopped), "the list is not newest first")
	g.Expect(r.Get(stopped.UPID.String())).To(BeIdenticalTo(stopped))
}
