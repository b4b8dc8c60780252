// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"testing"

	operatorstatus "github.com/awslabs/operatorpkg/status"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/nodeclass"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/controllers/watch"
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

// newNodeClassController returns a controller with root logins of regions, of which it only needs to know that they exist.
func newNodeClassController(w *testenv.Env, kube client.Client, roots ...string) *nodeclass.Controller {
	deps := nodeclass.Deps{
		Inventory: w.Inventory, Types: w.Types, Boot: w.Boot, Health: w.Instances.Health, Clock: w.Clock, RootClients: map[string]proxmox.Root{},
	}
	for _, region := range roots {
		deps.RootClients[region] = nil
	}
	return nodeclass.NewController(kube, w.Events, deps)
}

// checkClass reconciles a class once and updates it to what is stored in the API server.
func checkClass(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, roots ...string) *v1alpha1.ProxmoxNodeClass {
	w.T.Helper()
	result := testenv.Reconcile(w, newNodeClassController(w, w.Kube, roots...), class)
	w.Expect(result.RequeueAfter).To(Equal(watch.Again))
	return class
}

// checked checks a class and returns a condition.
func checked(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass, kind string) string {
	w.T.Helper()
	return condition(checkClass(w, class), kind)
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

var root = []string{testenv.Region}

// checkCase is a class and a Cluster, and what the checks of the class find.
type checkCase struct {
	hosts    int    // 1 by default
	release  string // of Proxmox
	scenario func(*pvesim.Scenario)
	class    func(*v1alpha1.ProxmoxNodeClass)
	// zones of the template, on all hosts by default.
	zones []string
	// roots are the regions with a root login.
	roots []string
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
	c.hosts = max(c.hosts, 1)
	w := testenv.New(t, testenv.NoPolling(), testenv.Hosts(c.hosts), testenv.Scenario(func(s *pvesim.Scenario) {
		s.Version = cmp.Or(c.release, s.Version)
		change(s, c.scenario)
	}))
	if c.zones == nil {
		c.zones = testenv.Zones(c.hosts)
	}
	setTemplateZones(w, c.zones...)
	change(w, c.prepare)
	return w, w.NewClass(func(class *v1alpha1.ProxmoxNodeClass) { change(class, c.class) })
}

// test runs a test with a class that was not checked yet.
func (c checkCase) test(t *testing.T, test func(w *testenv.Env, class *v1alpha1.ProxmoxNodeClass)) {
	t.Helper()
	testenv.Simulated(t, func(t *testing.T) { test(c.newClass(t)) })
}

func (c checkCase) run(t *testing.T, kind string) {
	t.Helper()
	w, class := c.newClass(t)
	checkClass(w, class, c.roots...)
	if c.unread {
		w.Expect(class.StatusConditions().Get(kind).IsUnknown()).To(BeTrue(), condition(class, kind))
	}
	w.Refresh() // some facts are read once a class needs them
	checkClass(w, class, c.roots...)
	for _, got := range class.Status.Conditions {
		fails := c.want != "" && (got.Type == kind || got.Type == operatorstatus.ConditionReady)
		w.Expect(got.Status == metav1.ConditionFalse).To(Equal(fails), "%s: %s", got.Type, got.Message)
	}
	ready := class.StatusConditions().Root()
	w.Expect(ready.ObservedGeneration).To(Equal(class.Generation))
	w.Expect(ready.IsTrue()).To(Equal(c.want == ""), ready.Message)
	if c.want != "" {
		w.Expect(condition(class, kind)).To(matchText("False " + c.reason + ": " + c.want))
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

// withoutPrivilege removes privileges ("role privilege") from their roles.
func withoutPrivilege(privileges ...string) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) {
		for i, role := range s.Roles {
			s.Roles[i].Privileges = slices.DeleteFunc(slices.Clone(role.Privileges), func(p string) bool { return slices.Contains(privileges, role.ID+" "+p) })
		}
	}
}

// both makes two changes of a scenario.
func both(first, second func(*pvesim.Scenario)) func(*pvesim.Scenario) {
	return func(s *pvesim.Scenario) { first(s); second(s) }
}

func TestCheckTemplate(t *testing.T) {
	runChecks(t, v1alpha1.ConditionInstanceTemplateReady, v1alpha1.ReasonTemplatesNotFound, map[string]checkCase{
		"on_some_hosts": {hosts: 3, zones: []string{"region-1/pve1/9000", "region-1/pve3/9002"},
			unusable: map[string]string{"pve2": `ProxmoxUnmanagedTemplate "ubuntu" is not on this host`}},
		"on_other_hosts_only": {zones: []string{"region-1/pve7/9000"}, want: `region-1/pve1: ProxmoxUnmanagedTemplate "ubuntu" is not on this host`},
		"excluded_host": {hosts: 2, zones: testenv.Zones(1), prepare: func(w *testenv.Env) { w.ApplySettings(`{"*": {"pve2": {"excluded": true}}}`) },
			unusable: map[string]string{"pve2": `ProxmoxUnmanagedTemplate "ubuntu" is not on this host: the host is excluded by settings`}},
		"on_no_host": {zones: []string{}, want: `ProxmoxUnmanagedTemplate "ubuntu" is on no host yet: not found on any host`},
		"unknown": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.InstanceTemplateRef.Name = "talos" },
			want: `spec.instanceTemplateRef names ProxmoxUnmanagedTemplate "talos", which does not exist; create it, or set one that is listed by: ` +
				`kubectl get proxmoxunmanagedtemplates`},
		"unknown_managed": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.InstanceTemplateRef.Kind = "ProxmoxTemplate" },
			want: `spec.instanceTemplateRef names ProxmoxTemplate "ubuntu", which does not exist; create it, or set one that is listed by: ` +
				"kubectl get proxmoxtemplates"},
		"no_boot_disk": {
			scenario: func(s *pvesim.Scenario) {
				for _, guest := range s.Guests {
					delete(guest.Config, "scsi0")
					delete(guest.Config, "boot")
				}
			},
			want: `region-1/pve1: template 9000 cannot be used: the template has no boot disk: ` +
				`its boot order "" names none, and it has none of virtio0, scsi0, sata0, ide0`,
		},
		"unknown_interface": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.SecurityGroups = []v1alpha1.SecurityGroup{{Name: "kubernetes", Interface: "net3"}}
			},
			want: "region-1/pve1: template 9000 cannot be used: a security group names interface net3, but neither the template nor spec.network has one of that name",
		},
		"conflicting_snippet": {scenario: both(workerSnippet, setTemplateOption("cicustom", "user=local:snippets/worker.yaml")),
			class: proxmoxDrive(&v1alpha1.CloudInit{User: "ops"}),
			want: "region-1/pve1: template 9000 cannot be used: its cicustom sets user=local:snippets/worker.yaml, " +
				"which replaces the user-data of spec.metadataOptions.cloudInit; " +
				"remove it from the template (qm set TEMPLATE --delete cicustom), or remove the setting from the class"},
	})
}

func withFirmware(c *v1alpha1.ProxmoxNodeClass) {
	c.Spec.MetadataOptions.Type = v1alpha1.MetadataTypeFirmware
}

func TestCheckBootData(t *testing.T) {
	userData := func(text string) func(*testenv.Env) {
		return func(w *testenv.Env) { setSecret(w, testenv.TemplatesSecret, "user-data", text) }
	}
	const rendering = "rendering secret kube-system/templates of spec.metadataOptions.templatesRef: "
	runChecks(t, v1alpha1.ConditionInstanceMetadataOptionsReady, v1alpha1.ReasonMetadataOptionsNotFound, map[string]checkCase{
		"unknown_templates_secret": {class: func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.MetadataOptions.TemplatesRef.Name = "nowhere" },
			want: `reading secret kube-system/nowhere of spec.metadataOptions.templatesRef: secrets "nowhere" not found`},
		"unknown_values_secret": {
			class: func(c *v1alpha1.ProxmoxNodeClass) {
				c.Spec.MetadataOptions.ValuesRef = &v1alpha1.SecretReference{Namespace: c.Spec.MetadataOptions.TemplatesRef.Namespace, Name: "nothing"}
			},
			want: `reading secret kube-system/nothing of spec.metadataOptions.valuesRef: secrets "nothing" not found`,
		},
		"syntax": {
			prepare: userData("#cloud-config\nhostname: {{ .Metadata.Hostname \n"), want: rendering + "user-data: line 3: unclosed action started at user-data:2",
		},
		"unknown_variable": {
			prepare: userData("#cloud-config\n\nhostname: {{ .Metadata.Hostnam }}\n"), want: rendering + `user-data: line 3, column 22: Metadata has no field "Hostnam"`,
		},
		"unused_routes": {
			prepare: userData("version: v1alpha1\nmachine: {type: worker}\n"),
			class: withInterface(v1alpha1.VMInterface{Name: "net0", InterfaceRouting: v1alpha1.InterfaceRouting{
				PolicyRoutes: []v1alpha1.PolicyRoute{{From: "10.0.0.0/8", Table: 1, Priority: 1}},
			}}),
			want: "spec.network.interfaces[0].policyRoutes has no effect: user-data of secret kube-system/templates of spec.metadataOptions.templatesRef " +
				"does not use it, or its format cannot express it; add it to the template as the recipes do, or remove it from the class",
		},
		"firmware": {class: withFirmware, roots: root, prepare: userData("variant: flatcar\nversion: 1.1.0\n")},
		"firmware_with_cloud-config": {
			class: withFirmware, roots: root, want: "user-data is cloud-config, but spec.metadataOptions.type fwcfg is for Ignition...",
		},
		"cloud-init_drive_with_truncated_key": {class: proxmoxDrive(&v1alpha1.CloudInit{SSHKeys: []string{"ssh-ed25519 AAAAC3NzaC1l me"}}),
			want: "reading spec.metadataOptions.cloudInit.sshKeys[0]: the SSH key is truncated..."},
	})
}

func TestCheckKubeletConfiguration(t *testing.T) {
	kubelet := func(k v1alpha1.KubeletConfiguration) func(*v1alpha1.ProxmoxNodeClass) {
		return func(c *v1alpha1.ProxmoxNodeClass) { c.Spec.KubeletConfiguration = &k }
	}
	runChecks(t, v1alpha1.ConditionKubeletConfigurationValid, v1alpha1.ReasonKubeletConfigurationInvalid, map[string]checkCase{
		"unknown_field": {class: kubelet(v1alpha1.KubeletConfiguration{Fields: map[string]string{"maxPod": "50"}}),
			want: "spec.kubeletConfiguration.maxPod: found 50; the kubelet's configuration (kubelet.config.k8s.io/v1beta1, Kubernetes 1.36) has no such field; " +
				"did you mean maxPods?"},
		"negative": {class: kubelet(v1alpha1.KubeletConfiguration{KubeReserved: map[string]string{"memory": "memory - 300 * Gi"}}),
			want: `spec.kubeletConfiguration.kubeReserved.memory: found "memory - 300 * Gi"; ` +
				"it is -319975063552: want 0 or more for a VM with 1 vCPUs and 2Gi of memory; " +
				"want a quantity such as 100m or 512Mi, or a CEL expression over cpu (vCPUs) and memory (bytes), such as 256 * Mi + memory / 50"},
	})
}
