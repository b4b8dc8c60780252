// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	unmanagedtemplate "github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/unmanagedtemplate/status"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/instance/plan"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// tokenSetup is a setup of the token that docs/permissions.md describes.
type tokenSetup struct {
	scenario func(*pvesim.Scenario)
	pool     string
	// class changes the class; nil for none.
	class func(*v1alpha1.ProxmoxNodeClass)
	// unneeded are the privileges ("role privilege") that VMs of the test's class do not
	// require.
	unneeded []string
}

func wholeCluster() tokenSetup {
	return tokenSetup{
		scenario: func(*pvesim.Scenario) {},
		unneeded: []string{"Karpenter SDN.Audit", "Karpenter Sys.AccessNetwork"},
	}
}

func poolScoped() tokenSetup {
	const user = "kubernetes@pve"
	return tokenSetup{
		pool: "karpenter",
		unneeded: []string{
			"KarpenterISO Datastore.AllocateSpace", "KarpenterNet SDN.Audit", "KarpenterVM Pool.Audit", "KarpenterVM VM.Clone",
		},
		scenario: func(s *pvesim.Scenario) {
			s.Pools = append(s.Pools, pvesim.Pool{ID: "karpenter"})
			s.Roles = []pvesim.Role{
				{ID: "KarpenterVM", Privileges: []string{
					"VM.Audit", "VM.Allocate", "VM.Clone", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk",
					"VM.Config.Network", "VM.Config.HWType", "VM.Config.Cloudinit", "VM.Config.Options", "VM.PowerMgmt", "Pool.Audit",
				}},
				{ID: "KarpenterTemplate", Privileges: []string{"VM.Audit", "VM.Clone"}},
				{ID: "KarpenterDisk", Privileges: []string{"Datastore.AllocateSpace", "Datastore.Audit"}},
				{ID: "KarpenterISO", Privileges: []string{"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit"}},
				{ID: "KarpenterHost", Privileges: []string{"Sys.Audit"}},
				{ID: "KarpenterNet", Privileges: []string{"SDN.Use", "SDN.Audit"}},
			}
			s.ACLs = []pvesim.ACL{
				{Path: "/pool/karpenter", Role: "KarpenterVM", User: user},
				{Path: "/vms/9000", Role: "KarpenterTemplate", User: user},
				{Path: "/storage/local-lvm", Role: "KarpenterDisk", User: user},
				{Path: "/storage/local", Role: "KarpenterISO", User: user},
				{Path: "/nodes", Role: "KarpenterHost", User: user},
				{Path: "/sdn/zones/localnetwork", Role: "KarpenterNet", User: user},
			}
		},
	}
}

// without removes one privilege ("role privilege") from its role.
func without(privilege string) func(*pvesim.Scenario) {
	role, name, _ := strings.Cut(privilege, " ")
	return func(s *pvesim.Scenario) {
		for i := range s.Roles {
			if s.Roles[i].ID == role {
				s.Roles[i].Privileges = slices.DeleteFunc(slices.Clone(s.Roles[i].Privileges), func(p string) bool { return p == name })
			}
		}
	}
}

// TestCheckPrivileges removes each privilege of the documented roles. Without it, either
// the class is not Ready with the privilege in the message, and a VM cannot be launched
// and deleted; or the class is Ready, and a VM can.
func TestCheckPrivileges(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]tokenSetup{"on_the_cluster": wholeCluster(), "on_a_resource_pool": poolScoped()} {
		sample := pvesim.DefaultScenario(1)
		set.scenario(sample)
		for _, version := range []string{"8.4", "9.2"} {
			for _, role := range sample.Roles {
				for _, privilege := range role.Privileges {
					t.Run(fmt.Sprintf("%s/%s/%s_%s", version, name, role.ID, privilege), func(t *testing.T) {
						t.Parallel()
						checkMissingPrivilege(t, set, version, role.ID+" "+privilege)
					})
				}
			}
			t.Run(version+"/"+name+"/none_missing", func(t *testing.T) {
				t.Parallel()
				checkMissingPrivilege(t, set, version, "")
			})
		}
	}
}

// Proxmox checks a privilege for the Host's random number generator when it clones a
// template with it.
func TestCheckPrivilegesForHardwareRNG(t *testing.T) {
	t.Parallel()
	for _, rng := range []string{"source=/dev/hwrng,max_bytes=1024,period=1000", "/dev/hwrng"} {
		setup := wholeCluster()
		setup.scenario = func(s *pvesim.Scenario) {
			s.Guests[0].Config["rng0"] = rng
			s.Roles = append(s.Roles, pvesim.Role{ID: "KarpenterMapping", Privileges: []string{"Mapping.Use"}})
			s.ACLs = append(s.ACLs, pvesim.ACL{Path: "/mapping/hwrng", Role: "KarpenterMapping", User: "kubernetes@pve"})
		}
		for _, version := range []string{"8.4", "9.2"} {
			for name, missing := range map[string]string{"missing": "KarpenterMapping Mapping.Use", "none_missing": ""} {
				t.Run(version+"/"+rng+"/"+name, func(t *testing.T) {
					t.Parallel()
					checkMissingPrivilege(t, setup, version, missing)
				})
			}
		}
	}
}

// Proxmox checks a privilege on the owner of a retained disk when it is attached.
func TestCheckPrivilegesForRetainedDisks(t *testing.T) {
	t.Parallel()
	setup := poolScoped()
	grant := setup.scenario
	setup.scenario = func(s *pvesim.Scenario) {
		grant(s)
		s.Roles = append(s.Roles, pvesim.Role{ID: "KarpenterRetained", Privileges: []string{"VM.Config.Disk"}})
		s.ACLs = append(s.ACLs, pvesim.ACL{Path: fmt.Sprintf("/vms/%d", proxmox.RetainedVMID), Role: "KarpenterRetained", User: "kubernetes@pve"})
	}
	setup.class = func(class *v1alpha1.ProxmoxNodeClass) {
		class.Spec.Machines = []v1alpha1.Machine{{Name: "db-1", Zone: "pve1"}}
		class.Spec.Disks = []v1alpha1.Disk{{Name: "data", Size: "1Gi", Storage: "local-lvm", Retain: true}}
	}
	for _, version := range []string{"8.4", "9.2"} {
		for name, missing := range map[string]string{"missing": "KarpenterRetained VM.Config.Disk", "none_missing": ""} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				checkMissingPrivilege(t, setup, version, missing)
			})
		}
	}
}

func checkMissingPrivilege(t *testing.T, setup tokenSetup, version, privilege string) {
	t.Helper()
	w := testenv.New(t, testenv.NoPolling(), testenv.Scenario(setup.scenario), testenv.Scenario(without(privilege)),
		testenv.Scenario(func(s *pvesim.Scenario) { s.Version = version }))
	template := w.Template()
	_, err := unmanagedtemplate.NewController(w.Kube, w.Inventory, w.Events).Reconcile(t.Context(), template)
	w.Expect(err).NotTo(HaveOccurred())
	class := reconcileClass(w, w.NewClass(func(c *v1alpha1.ProxmoxNodeClass) {
		c.Spec.ResourcePool = setup.pool
		if setup.class != nil {
			setup.class(c)
		}
	}))
	if setup.pool != "" {
		w.Refresh() // a resource pool is read once a class refers to it
		class = reconcileClass(w, class)
	}
	ready := class.StatusConditions().Root()
	_, name, _ := strings.Cut(privilege, " ")
	if privilege == "" || slices.Contains(setup.unneeded, privilege) {
		w.Expect(ready.IsTrue()).To(BeTrue(), ready.Message)
	} else {
		w.Expect(ready.IsFalse()).To(BeTrue(), "the class is Ready without %s", privilege)
		w.Expect(ready.Message).To(ContainSubstring(name))
	}

	class.Status.SelectedZones = []string{"region-1/pve1/9000"}
	w.MarkReady(class)
	if err := runVMLifecycle(w, class); ready.IsTrue() {
		w.Expect(err).NotTo(HaveOccurred(), "the class is Ready without %s", privilege)
	} else {
		w.Expect(err).To(HaveOccurred(), "the class is not Ready, but a VM can be launched without %s", privilege)
	}
}

// runVMLifecycle launches a VM, cleans up its boot drive and deletes it.
func runVMLifecycle(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) error {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), 5*time.Minute)
	defer cancel()
	claim := w.Claim("lifecycle", class)
	in, err := w.Instances.Planner.Plan(ctx, claim, class, plan.Options{})
	if err != nil {
		return err
	}
	testenv.Reload(w, claim)
	claim.Status.ProviderID = in.ProviderID()
	w.Expect(w.Kube.Status().Update(ctx, claim)).To(Succeed())
	if err := retryTransient(func() error { return w.Instances.Launcher.Launch(ctx, w.Stored(claim), class) }); err != nil {
		return err
	}
	if err := retryTransient(func() error { return w.Instances.Deleter.CleanupBootDrive(ctx, w.Stored(claim)) }); err != nil {
		return err
	}
	for deleted := false; !deleted; {
		err := retryTransient(func() (err error) {
			deleted, err = w.Instances.Deleter.Delete(ctx, w.Stored(claim))
			return err
		})
		if err != nil {
			return err
		}
		w.Clock.Sleep(time.Second)
	}
	return nil
}

// retryTransient retries transient errors, as the controllers do: on a busy machine, a wait for a
// lock can time out.
func retryTransient(f func() error) (err error) {
	for range 5 {
		if err = f(); !proxmox.IsTransient(err) {
			return err
		}
	}
	return err
}
