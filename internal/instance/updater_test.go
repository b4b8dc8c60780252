// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"fmt"
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/ownership"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

func TestUpdateInPlace(t *testing.T) {
	testenv.With(testenv.Scenario(func(s *pvesim.Scenario) {
		s.SecurityGroups = append(s.SecurityGroups, pvesim.SecurityGroup{Name: "web"})
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.Machines = []v1alpha1.Machine{{Name: "db-1"}}
		w.NodeClass.Spec.Tags = []string{"node-{{ .Hostname }}"}
		claim, in := launchVM(w, p)
		w.Expect(w.VMConfig(in).Tags()).To(ConsistOf("node-db-1"), "the name of the machine, at launch and later")
		w.NodeClass.Spec.Tags = append(w.NodeClass.Spec.Tags, "Web", "vm-{{ .InstanceID }}")
		w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{webGroup}
		w.Expect(p.Instances.Updater.UpdateInPlace(w.Context(), claim, w.NodeClass)).To(Succeed())
		cfg := w.VMConfig(in)
		w.Expect(cfg.Tags()).To(ConsistOf("node-db-1", "web", fmt.Sprintf("vm-%d", in.VMID)))
		w.Expect(cfg.Network().NICs()[0].Firewall).To(BeTrue())
		mark, _ := ownership.Read(cfg.Description())
		w.Expect(mark.Applied).To(And(HaveField("Hash", w.NodeClass.InPlaceHash()), HaveField("Pending", BeEmpty())))
		w.Expect(p.Instances.VMs.Get(w.Context(), in.ID())).To(HaveField("ClaimUID", string(claim.UID)), "it is still ours")
	})
}

func TestUpdateInPlaceFirewall(t *testing.T) {
	testenv.With(testenv.Scenario(func(s *pvesim.Scenario) {
		s.SecurityGroups = append(s.SecurityGroups, pvesim.SecurityGroup{Name: "web"})
		for i, guest := range s.Guests {
			if guest.VMID == 9000 {
				s.Guests[i].Config["net1"] = "virtio=BC:24:11:00:77:01,bridge=vmbr0"
				s.Guests[i].Config["net2"] = "virtio=BC:24:11:00:77:02,bridge=vmbr0,firewall=1"
			}
		}
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{
			{Name: "kubernetes", Interface: "net0"}, {Name: "kubernetes", Interface: "net0"}, {Name: "web", Interface: "net1"}, {Name: "web", Interface: "net2"},
		}
		claim := p.Launched("default-a", w.NodeClass)
		firewalled := func() map[string]bool {
			out := map[string]bool{}
			for _, nic := range w.VMConfig(w.Intent(claim)).Network().NICs() {
				out[nic.Slot] = nic.Firewall
			}
			return out
		}
		w.Expect(firewalled()).To(Equal(map[string]bool{"net0": true, "net1": true, "net2": true}))
		w.NodeClass.Spec.SecurityGroups = w.NodeClass.Spec.SecurityGroups[:1]
		w.Expect(p.Instances.Updater.UpdateInPlace(w.Context(), claim, w.NodeClass)).To(Succeed())
		w.Expect(firewalled()).To(Equal(map[string]bool{"net0": true, "net1": false, "net2": true}), "net2 inherits it from its template")
		w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "web", Interface: "net1"}}
		w.Expect(p.Instances.Updater.UpdateInPlace(w.Context(), claim, w.NodeClass)).To(Succeed())
		w.Expect(firewalled()).To(Equal(map[string]bool{"net0": false, "net1": true, "net2": true}))
	})
}

const firewallOptions = "/nodes/{node}/qemu/{vmid}/firewall/options"

var (
	templateRule = proxmox.SecurityGroupRule{Group: "template", Interface: "net0"}
	webGroup     = v1alpha1.SecurityGroup{Name: "web", Interface: "net0"}
	webRule      = proxmox.SecurityGroupRule{Group: "web", Interface: "net0"}
	dbGroup      = v1alpha1.SecurityGroup{Name: "db", Interface: "net0"}
	dbRule       = proxmox.SecurityGroupRule{Group: "db", Interface: "net0"}
)

// firewallEnv is a running VM of a class without security groups.
type firewallEnv struct {
	*testenv.Env
	process *testenv.Process
	claim   *karpv1.NodeClaim
}

// testFirewall runs a test with a VM whose template has rules.
func testFirewall(t *testing.T, test func(*firewallEnv), template ...proxmox.SecurityGroupRule) {
	t.Helper()
	testenv.With(testenv.NoPolling(), testenv.Scenario(func(s *pvesim.Scenario) {
		s.SecurityGroups = append(s.SecurityGroups, pvesim.SecurityGroup{Name: "template"}, pvesim.SecurityGroup{Name: "web"}, pvesim.SecurityGroup{Name: "db"})
	})).Test(t, func(w *testenv.Env, p *testenv.Process) {
		if len(template) > 0 {
			w.Expect(w.Client.SetFirewall(w.Context(), "pve1", 9000, template)).To(Succeed())
		}
		w.NodeClass.Spec.SecurityGroups = nil
		test(&firewallEnv{w, p, p.Launched("pool-abc", w.NodeClass)})
	})
}

// update applies the class and returns how often the options of the firewall were written.
func (w *firewallEnv) update(groups ...v1alpha1.SecurityGroup) (int, error) {
	w.T.Helper()
	w.NodeClass.Spec.SecurityGroups = groups
	w.Sim.ResetRequests()
	err := w.process.Instances.Updater.UpdateInPlace(w.Context(), w.Stored(w.claim), w.NodeClass)
	return w.Sim.CountRequests(http.MethodPut, firewallOptions), err
}

func (w *firewallEnv) rules() []proxmox.SecurityGroupRule {
	w.T.Helper()
	in := w.Intent(w.claim)
	rules, err := w.Client.SecurityGroupRules(w.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	return rules
}

// A change of tags does not revert what the template has, and what an administrator changed by hand.
func TestUpdateInPlaceKeepsFirewall(t *testing.T) {
	testFirewall(t, func(w *firewallEnv) {
		nic := w.VMConfig(w.Intent(w.claim)).Network().NICs()[0]
		w.Expect(nic.Firewall).To(BeFalse())
		nic.Firewall = true
		setOption(w.Env, w.claim, "net0", nic.Encode())
		w.NodeClass.Spec.Tags = []string{"web"}
		w.Expect(w.update()).To(BeZero())
		cfg := w.VMConfig(w.Intent(w.claim))
		w.Expect(cfg.Tags()).To(ConsistOf("web"))
		w.Expect(cfg.Network().NICs()[0].Firewall).To(BeTrue())
		w.Expect(w.rules()).To(ConsistOf(templateRule))

		w.Expect(w.update(webGroup)).To(Equal(1))
		w.Expect(w.rules()).To(ConsistOf(webRule))
		w.NodeClass.Spec.Tags = []string{"db"}
		w.Expect(w.update(webGroup)).To(BeZero(), "the groups did not change")
		w.Expect(w.update(dbGroup)).To(Equal(1))
		w.Expect(w.rules()).To(ConsistOf(dbRule))
	}, templateRule)
}

func TestUpdateInPlaceInterruptedFirewall(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		next []v1alpha1.SecurityGroup
		want []proxmox.SecurityGroupRule
	}{
		"retried":  {[]v1alpha1.SecurityGroup{webGroup}, []proxmox.SecurityGroupRule{webRule}},
		"changed":  {[]v1alpha1.SecurityGroup{dbGroup}, []proxmox.SecurityGroupRule{dbRule}},
		"reverted": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			testFirewall(t, func(w *firewallEnv) {
				w.AddFault(pvesim.Fault{Method: http.MethodPut, Path: firewallOptions, Status: http.StatusForbidden, Message: "Permission check failed", Count: 1})
				_, err := w.update(webGroup)
				w.Expect(err).To(HaveOccurred())
				w.Expect(w.rules()).To(ConsistOf(webRule))
				w.Expect(w.update(test.next...)).To(Equal(1))
				w.Expect(w.rules()).To(HaveExactElements(test.want))
				w.Expect(w.VMConfig(w.Intent(w.claim)).Network().NICs()[0].Firewall).To(Equal(len(test.want) > 0))
			})
		})
	}
}

// The class changed between plan and launch.
func TestUpdateInPlaceGroupsChangedDuringLaunch(t *testing.T) {
	testFirewall(t, func(w *firewallEnv) {
		w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{dbGroup}
		w.claim = w.process.Planned("pool-def", w.NodeClass)
		w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{webGroup}
		w.process.MustLaunch(w.claim, w.NodeClass)
		w.Expect(w.rules()).To(ConsistOf(webRule))
		w.Expect(w.update(webGroup)).To(BeZero(), "the VM was configured with them")
		w.Expect(w.update()).To(Equal(1))
		w.Expect(w.rules()).To(BeEmpty())
	})
}
