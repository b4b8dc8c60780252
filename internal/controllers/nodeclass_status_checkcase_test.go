// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/proxmox"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

// setTemplateZones creates a template and sets its status like its own controller.
func setTemplateZones(w *testenv.Env, zones ...string) {
	w.T.Helper()
	template := w.Template()
	template.Status.Zones = zones
	if len(zones) > 0 {
		template.StatusConditions().SetTrue(v1alpha1.ConditionTemplateReady)
	} else {
		template.StatusConditions().SetFalse(v1alpha1.ConditionTemplateReady, v1alpha1.ReasonTemplatesNotFound, "not found on any host")
	}
	w.Expect(w.Kube.Status().Update(w.T.Context(), template)).To(Succeed())
}

// nodeClassStatusSetUserData changes the boot data template of classes.
func nodeClassStatusSetUserData(w *testenv.Env, text string) {
	w.T.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.Name, Name: testenv.TemplatesSecret}}
	testenv.Modify(w, secret, func(s *corev1.Secret) { s.Data["user-data"] = []byte(text) })
}

// statusDeps returns the dependencies of the controller under test.
func statusDeps(w *testenv.Env) nodeclass.Deps {
	return nodeclass.Deps{
		Inventory: w.Inventory, Types: w.Types, RootClients: w.Roots, Boot: w.Boot,
		Health: w.Instances.Health, Clock: w.Clock,
	}
}

// nodeClassStatusReconcileClass reconciles a class once and updates it to what is stored in the API server.
func nodeClassStatusReconcileClass(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	result, err := nodeclass.NewController(w.Kube, w.Events, statusDeps(w)).Reconcile(w.T.Context(), testenv.Reload(w, class))
	w.Expect(err).NotTo(HaveOccurred())
	recheck := 20 * time.Second
	if testenv.Reload(w, class).StatusConditions().Root().IsTrue() {
		recheck = time.Minute
	}
	w.Expect(result.RequeueAfter).To(Equal(recheck))
	return class
}

// nodeClassStatusCondition returns a condition as "Status Reason: message"; empty if there is none.
func nodeClassStatusCondition(class *v1alpha1.ProxmoxNodeClass, kind string) string {
	c := class.StatusConditions().Get(kind)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

// isReady reports whether a class is Ready.
func isReady(class *v1alpha1.ProxmoxNodeClass) bool { return class.StatusConditions().Root().IsTrue() }

// usableZones returns the number that the column ZONES shows.
func usableZones(class *v1alpha1.ProxmoxNodeClass) int64 {
	zones := class.Status.Resources[v1alpha1.ResourceZones]
	return zones.Value()
}

// matchText matches a text, or its start if the expectation ends with dots.
func matchText(want string) OmegaMatcher {
	if start, ok := strings.CutSuffix(want, "..."); ok {
		return HavePrefix(start)
	}
	return Equal(want)
}

// checkCase is a class and a Cluster, and what the checks of the class find.
type checkCase struct {
	hosts    int    // 1 by default
	release  string // of Proxmox
	scenario func(*pvesim.Scenario)
	class    func(*v1alpha1.ProxmoxNodeClass)
	// zones of the template, on all hosts by default.
	zones []string
	// root is set if there is a root login.
	root bool
	// prepare runs before the first check.
	prepare func(*testenv.Env)
	// unread is set if the condition is unknown at first, because the facts are read once a class needs them.
	unread bool
	// want is the message of the condition if it is false, and reason its reason if it is not that of the table.
	want, reason string
	// unusable is why hosts cannot be used although the class is Ready.
	unusable map[string]string
}

// runChecks expects that only the given condition and Ready are false, each with its cause.
func runChecks(t *testing.T, condition, reason string, cases map[string]checkCase) {
	t.Helper()
	t.Parallel()
	for name, c := range cases {
		c.reason = cmp.Or(c.reason, reason)
		testenv.RunSimulated(t, name, func(t *testing.T) { c.run(t, condition) })
	}
}

func (c checkCase) newClass(t *testing.T) (*testenv.Env, *v1alpha1.ProxmoxNodeClass) {
	t.Helper()
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(max(c.hosts, 1)), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Version = cmp.Or(c.release, s.Version)
		if c.scenario != nil {
			c.scenario(s)
		}
	}))
	if c.zones == nil {
		c.zones = testenv.Zones(max(c.hosts, 1))
	}
	setTemplateZones(w, c.zones...)
	if c.root {
		w.Roots = map[string]proxmox.Root{testenv.Region: nil} // the checker only needs to know that one exists
	}
	if c.prepare != nil {
		c.prepare(w)
	}
	return w, w.NewClass(func(class *v1alpha1.ProxmoxNodeClass) {
		if c.class != nil {
			c.class(class)
		}
	})
}

func (c checkCase) run(t *testing.T, kind string) {
	t.Helper()
	w, class := c.newClass(t)
	nodeClassStatusReconcileClass(w, class)
	if c.unread {
		w.Expect(class.StatusConditions().Get(kind).IsUnknown()).To(BeTrue(), nodeClassStatusCondition(class, kind))
	}
	w.Refresh() // some facts are read once a class needs them
	nodeClassStatusReconcileClass(w, class)
	for _, got := range class.Status.Conditions {
		fails := c.want != "" && (got.Type == kind || got.Type == operatorstatus.ConditionReady)
		w.Expect(got.Status == metav1.ConditionFalse).To(Equal(fails), "%s: %s", got.Type, got.Message)
	}
	ready := class.StatusConditions().Root()
	w.Expect(ready.ObservedGeneration).To(Equal(class.Generation))
	w.Expect(ready.IsTrue()).To(Equal(c.want == ""), ready.Message)
	if c.want != "" {
		w.Expect(nodeClassStatusCondition(class, kind)).To(matchText("False " + c.reason + ": " + c.want))
		w.Expect(ready.Message).To(matchText(kind + ": " + c.want))
	}
	c.expectZones(w, class, kind)
}

// scopes matches the hosts or the region at the start of a message.
var scopes = regexp.MustCompile(`^region-1[^: ]*(, region-1[^: ]*)*: `)

// expectZones expects that a host that passes all checks is selected, and the reasons of the others.
func (c checkCase) expectZones(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, kind string) {
	w.T.Helper()
	hostIndependent := kind == v1alpha1.ConditionInstanceMetadataOptionsReady || kind == v1alpha1.ConditionKubeletConfigurationValid
	var selected []string
	var unusable []any
	for _, zone := range testenv.Zones(max(c.hosts, 1)) {
		name := zone[:strings.LastIndex(zone, "/")]
		reason := c.unusable[strings.TrimPrefix(name, testenv.Region+"/")]
		if c.want != "" && !hostIndependent {
			reason = scopes.ReplaceAllString(c.want, "")
		}
		if reason == "" {
			selected = append(selected, zone)
		} else {
			unusable = append(unusable, And(HaveField("Zone", name), HaveField("Reason", matchText(reason))))
		}
	}
	w.Expect(class.Status.SelectedZones).To(Equal(selected))
	w.Expect(class.Status.UnusableZones).To(ConsistOf(unusable...))
	w.Expect(usableZones(class)).To(BeEquivalentTo(len(selected)))
}

// setTemplateOption sets an option of every template of a scenario.
func setTemplateOption(option, value string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		for _, guest := range s.Guests {
			if guest.Config["template"] == "1" {
				guest.Config[option] = value
			}
		}
	}
}

// nodeClassStatusWithout removes one privilege ("role privilege") from its role.
func nodeClassStatusWithout(privilege string) func(*pvesim.Scenario) {
	role, name, _ := strings.Cut(privilege, " ")
	return func(s *pvesim.Scenario) {
		for i := range s.Roles {
			if s.Roles[i].ID == role {
				s.Roles[i].Privileges = slices.DeleteFunc(slices.Clone(s.Roles[i].Privileges), func(p string) bool { return p == name })
			}
		}
	}
}

// both makes two changes of a scenario.
func both(first, second func(*pvesim.Scenario)) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) { first(s); second(s) }
}
