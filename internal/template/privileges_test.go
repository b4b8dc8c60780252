// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// TestMissingPrivileges removes each privilege of the documented roles. Without it, either
// the location lists it and the template cannot be built and deleted; or it does not, and
// the template can.
func TestMissingPrivileges(t *testing.T) {
	t.Parallel()
	for name, setup := range map[string]func(*pvesim.Scenario){"whole_cluster": wholeCluster, "pool": poolScoped} {
		sample := pvesim.DefaultScenario(1)
		setup(sample)
		for _, version := range []string{"8.4", "9.2"} {
			for _, role := range sample.Roles {
				for _, privilege := range role.Privileges {
					without := pvesim.Role{
						ID: role.ID, Privileges: slices.DeleteFunc(slices.Clone(role.Privileges), func(p string) bool { return p == privilege }),
					}
					t.Run(fmt.Sprintf("%s_%s/%s_%s", name, version, role.ID, privilege), func(t *testing.T) {
						t.Parallel()
						checkMissingPrivilege(t, version, setup, without, func(*env) {})
					})
					t.Run(fmt.Sprintf("%s_%s/prepared/%s_%s", name, version, role.ID, privilege), func(t *testing.T) {
						t.Parallel()
						checkMissingPrivilege(t, version, setup, without, func(e *env) { prepareTemplates(e) })
					})
				}
			}
		}
	}
}

func checkMissingPrivilege(t *testing.T, version string, setup func(*pvesim.Scenario), role pvesim.Role, change func(*env)) {
	t.Helper()
	e := newEnv(t, 1, func(s *pvesim.Scenario) {
		s.Version, s.Pools = version, []pvesim.Pool{{ID: "karpenter"}}
		s.Storages[0].Content = []string{"import", "iso"}
		s.Guests = nil // not visible to the token
	}, setup)
	e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
		s.Tags, s.BIOS, s.ResourcePool = []string{"karpenter"}, "ovmf", "karpenter"
	})
	change(e)
	before, err := e.client().Permissions(t.Context())
	e.Expect(err).NotTo(HaveOccurred())
	e.Expect(e.sim.SetRole(role)).To(Succeed())

	blocker := ""
	for _, location := range template.Locations(e.process().Inventory().View(), e.desired(), nil) {
		blocker = location.Blocker()
	}
	unaware := e.processOf(kubeCluster, outdatedPermissions{e.client(), before})
	err = unaware.buildAndDelete()
	if blocker == "" {
		e.Expect(err).NotTo(HaveOccurred(), "the location lists no missing privilege")
	} else {
		e.Expect(err).To(HaveOccurred(), blocker)
	}
}

// outdatedPermissions is a client whose privileges were revoked since they were read.
type outdatedPermissions struct {
	proxmox.Client
	before proxmox.Permissions
}

func (c outdatedPermissions) Permissions(context.Context) (proxmox.Permissions, error) {
	return c.before, nil
}

// buildAndDelete builds the template and deletes it with its image. It retries transient errors; a
// missing privilege is permanent.
func (p *process) buildAndDelete() error {
	p.env.t.Helper()
	ctx := p.env.t.Context()
	failures := 0
	isLast := func() bool {
		failures++
		p.env.builders.clock.Advance(time.Minute) // the backoff
		return failures == 3
	}
	for complete := false; !complete; {
		report, err := p.reconcileOnce(ctx)
		if err != nil && isLast() {
			return err
		}
		complete = err == nil && report.Complete
	}
	now := metav1.Now()
	p.env.object = p.env.object.DeepCopy()
	p.env.object.DeletionTimestamp = &now
	for {
		var remaining []string
		_, err := p.reconcileOnce(ctx)
		if err == nil {
			remaining, err = p.Cleanup(ctx, p.env.desired(), p.env.usage)
		}
		if err == nil && len(remaining) == 0 {
			return nil
		}
		if err == nil && strings.Contains(remaining[0], "privilege") {
			err = errors.New(remaining[0])
		}
		if err != nil && isLast() {
			return err
		}
	}
}

func (p *process) reconcileOnce(ctx context.Context) (template.Report, error) {
	err := p.reconcile(ctx, "pve1")
	if err == nil {
		err = p.Inventory().RefreshAll(ctx)
	}
	report := p.report()
	if err == nil && report.Failing {
		err = errors.New(report.Message)
	}
	return report, err
}
