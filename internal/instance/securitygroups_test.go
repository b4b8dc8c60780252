// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package instance_test

import (
	"net/http"
	"testing"

	. "github.com/onsi/gomega"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

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

func newFirewallEnv(t *testing.T, template ...proxmox.SecurityGroupRule) *firewallEnv {
	t.Helper()
	w := testenv.NewFake(t, testenv.Scenario(func(s *pvesim.Scenario) {
		s.SecurityGroups = append(s.SecurityGroups, pvesim.SecurityGroup{Name: "template"}, pvesim.SecurityGroup{Name: "web"}, pvesim.SecurityGroup{Name: "db"})
	}))
	if len(template) > 0 {
		w.Expect(w.Client.SetFirewall(t.Context(), "pve1", 9000, template)).To(Succeed())
	}
	w.NodeClass.Spec.SecurityGroups = nil
	p := w.StartProcess()
	return &firewallEnv{w, p, p.Launched("pool-abc", w.NodeClass)}
}

// update applies the class and returns how often the options of the firewall were written.
func (w *firewallEnv) update(groups ...v1alpha1.SecurityGroup) (int, error) {
	w.T.Helper()
	w.NodeClass.Spec.SecurityGroups = groups
	w.Sim.ResetRequests()
	err := w.process.Instances.Updater.UpdateInPlace(w.T.Context(), w.Stored(w.claim), w.NodeClass)
	return w.Sim.CountRequests(http.MethodPut, firewallOptions), err
}

func (w *firewallEnv) rules() []proxmox.SecurityGroupRule {
	w.T.Helper()
	in := w.Intent(w.claim)
	rules, err := w.Client.SecurityGroupRules(w.T.Context(), in.Host, in.VMID)
	w.Expect(err).NotTo(HaveOccurred())
	return rules
}

func TestUpdateInPlaceKeepsTemplateFirewall(t *testing.T) {
	t.Parallel()
	w := newFirewallEnv(t, templateRule)
	w.Expect(w.rules()).To(ConsistOf(templateRule))

	w.NodeClass.Spec.Tags = []string{"web"}
	w.Expect(w.update()).To(BeZero())
	w.Expect(w.VMConfig(w.Intent(w.claim)).Tags()).To(ConsistOf("web"))
	w.Expect(w.rules()).To(ConsistOf(templateRule))

	w.Expect(w.update(webGroup)).To(Equal(1))
	w.Expect(w.rules()).To(ConsistOf(webRule))
	w.NodeClass.Spec.Tags = []string{"db"}
	w.Expect(w.update(webGroup)).To(BeZero(), "the groups did not change")
	w.Expect(w.update(dbGroup)).To(Equal(1))
	w.Expect(w.rules()).To(ConsistOf(dbRule))
}

func TestUpdateInPlaceRemovesLastGroup(t *testing.T) {
	t.Parallel()
	w := newFirewallEnv(t)
	w.Expect(w.update(webGroup)).To(Equal(1))
	w.Expect(w.rules()).To(ConsistOf(webRule))
	w.Expect(w.update()).To(Equal(1), "the firewall is disabled")
	w.Expect(w.rules()).To(BeEmpty())
	w.Expect(w.VMConfig(w.Intent(w.claim)).Network().NICs()[0].Firewall).To(BeFalse())
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
			t.Parallel()
			w := newFirewallEnv(t)
			w.AddFault(pvesim.Fault{Method: http.MethodPut, Path: firewallOptions, Status: http.StatusForbidden, Message: "Permission check failed", Count: 1})
			_, err := w.update(webGroup)
			w.Expect(err).To(HaveOccurred())
			w.Expect(w.rules()).To(ConsistOf(webRule))
			w.Expect(w.update(test.next...)).To(Equal(1))
			w.Expect(w.rules()).To(HaveExactElements(test.want))
			w.Expect(w.VMConfig(w.Intent(w.claim)).Network().NICs()[0].Firewall).To(Equal(len(test.want) > 0))
		})
	}
}

// The class changed between plan and launch.
func TestUpdateInPlaceGroupsChangedDuringLaunch(t *testing.T) {
	t.Parallel()
	w := newFirewallEnv(t)
	w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{dbGroup}
	w.claim = w.process.Planned("pool-def", w.NodeClass)
	w.NodeClass.Spec.SecurityGroups = []v1alpha1.SecurityGroup{webGroup}
	w.process.MustLaunch(w.claim, w.NodeClass)
	w.Expect(w.rules()).To(ConsistOf(webRule))
	w.Expect(w.update(webGroup)).To(Equal(1), "the interfaces may have those of the plan")
	w.Expect(w.update()).To(Equal(1))
	w.Expect(w.rules()).To(BeEmpty())
}
