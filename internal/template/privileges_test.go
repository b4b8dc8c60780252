// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package template_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/declared"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/inventory/observed"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/template"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// wholeCluster is the documented role on "/", which the default scenario has.
func wholeCluster(*pvesim.Scenario) {}

// poolScoped limits the token to one pool, and to the storages, bridges and hosts that
// it uses.
func poolScoped(s *pvesim.Scenario) {
	s.Roles = []pvesim.Role{
		{ID: "KarpenterVM", Privileges: []string{
			"VM.Audit", "VM.Allocate", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk",
			"VM.Config.Network", "VM.Config.HWType", "VM.Config.Cloudinit", "VM.Config.Options", "VM.PowerMgmt", "Pool.Audit",
		}},
		{ID: "KarpenterDisk", Privileges: []string{"Datastore.AllocateSpace", "Datastore.Audit"}},
		{ID: "KarpenterISO", Privileges: []string{"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"}},
		{ID: "KarpenterHost", Privileges: []string{"Sys.Audit", "Sys.AccessNetwork"}},
		{ID: "KarpenterNet", Privileges: []string{"SDN.Use", "SDN.Audit"}},
	}
	const user = "kubernetes@pve"
	s.ACLs = []pvesim.ACL{
		{Path: "/pool/karpenter", Role: "KarpenterVM", User: user},
		{Path: "/storage/local-lvm", Role: "KarpenterDisk", User: user},
		{Path: "/storage/local", Role: "KarpenterISO", User: user},
		{Path: "/nodes", Role: "KarpenterHost", User: user},
		{Path: "/sdn/zones/localnetwork", Role: "KarpenterNet", User: user},
	}
}

// TestMissingPrivileges removes each privilege of the documented roles. Without one that the location
// then lists as missing, the template cannot be built or not be deleted. Without all others, it can be
// built, updated, replaced and deleted.
func TestMissingPrivileges(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		version  string
		roles    func(*pvesim.Scenario)
		prepared bool
	}{
		"whole_cluster":          {"8.4", wholeCluster, false},
		"whole_cluster_prepared": {"9.2", wholeCluster, true},
		"pool":                   {"9.2", poolScoped, false},
		"pool_prepared":          {"8.4", poolScoped, true},
	} {
		testenv.RunSimulated(t, name, func(t *testing.T) {
			var roles []pvesim.Role
			e := newEnv(t, 1, func(s *pvesim.Scenario) {
				s.Version, s.Pools = test.version, []pvesim.Pool{{ID: "karpenter"}}
				s.Storages[0].Content = []string{"import", "iso"}
				s.Guests = nil // not visible to the token
			}, test.roles, func(s *pvesim.Scenario) { roles = s.Roles })
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) {
				s.Tags, s.BIOS, s.TPM, s.ResourcePool = []string{"karpenter"}, "ovmf", &v1alpha1.TPM{Version: "v2.0"}, "karpenter"
				s.Agent, s.VGA = &v1alpha1.Agent{Enabled: true}, &v1alpha1.VGA{Type: "serial0"}
			})
			if test.prepared {
				prepareTemplates(e)
			}
			for _, role := range roles {
				required := e.requiredPrivileges(role)
				e.Expect(e.Sim.SetRole(pvesim.Role{ID: role.ID, Privileges: required})).To(Succeed())
			}
			p := e.process()
			zone := p.build()
			e.updateSpec(func(s *v1alpha1.ProxmoxTemplateSpec) { s.Description, s.CPU.Type = "changed", "host" })
			p.reconcileUntil(func(g Gomega) {
				g.Expect(e.config("pve1", zone.VMID).Options).To(HaveKeyWithValue("cpu", "host"))
			}, "pve1")
			e.replaceImage()
			e.Expect(p.build()).NotTo(Equal(zone))
			p.deleteAll()
		})
	}
}

// requiredPrivileges returns the privileges of a role without which the template cannot be built or not be deleted.
func (e *env) requiredPrivileges(role pvesim.Role) (required []string) {
	e.T.Helper()
	object, p := e.object, e.process()
	snapshot := *p.Inventory().View().Snapshots[region]
	facts, before := *snapshot.Facts, snapshot.Facts.Permissions
	snapshot.Facts = &facts
	view := inventory.NewView(map[string]*observed.Snapshot{region: &snapshot}, nil, nil, declared.Settings{}, declared.Records{})
	for _, privilege := range role.Privileges {
		without := slices.DeleteFunc(slices.Clone(role.Privileges), func(p string) bool { return p == privilege })
		e.Expect(e.Sim.SetRole(pvesim.Role{ID: role.ID, Privileges: without})).To(Succeed())
		var err error
		facts.Permissions, err = e.Client.Permissions(e.T.Context())
		e.Expect(err).NotTo(HaveOccurred())
		if template.NewRollout(view, kubeCluster, e.desired()).Locations[0].MissingPrivileges == "" {
			continue
		}
		required = append(required, privilege)
		unaware := e.processOf(kubeCluster, &outdatedPermissions{e.Client, before})
		e.Expect(unaware.buildAndDelete()).NotTo(Succeed(), "%s of %s is not required", privilege, role.ID)
		e.Expect(e.Sim.SetRole(role)).To(Succeed())
		p.deleteAll()
		e.object = object
	}
	return required
}

// outdatedPermissions is a client whose privileges were revoked since they were read.
type outdatedPermissions struct {
	proxmox.Client
	before proxmox.Permissions
}

func (c *outdatedPermissions) Permissions(context.Context) (proxmox.Permissions, error) {
	return c.before, nil
}

// buildAndDelete builds the template and deletes it with its image. It retries transient errors; a
// missing privilege is permanent.
func (p *process) buildAndDelete() error {
	p.env.T.Helper()
	failures := 0
	for {
		err := p.run(p.env.T.Context())
		report, deleted := p.report(), p.env.object.DeletionTimestamp != nil
		var remaining []string
		switch {
		case err != nil:
		case deleted:
			if remaining, err = p.cleanup(); err == nil && len(remaining) == 0 {
				return nil
			}
		case report.Failing:
			err = errors.New(report.Message)
		case report.Complete:
			p.env.deleteObject()
		}
		if err != nil || len(remaining) > 0 && strings.Contains(remaining[0], "privilege") {
			if failures++; failures == 3 {
				return errors.Join(err, errors.New(strings.Join(remaining, "; ")))
			}
			p.env.Clock.Advance(time.Minute) // the backoff
		}
	}
}
