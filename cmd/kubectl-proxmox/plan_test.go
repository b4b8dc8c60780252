// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/api/v1alpha1"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/testenv"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
	"github.com/karpenter-proxmox/karpenter-provider-proxmox/pvesim"
)

const webDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: web, resources: {requests: {cpu: 1500m}}}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
`

// The examples of docs/plan.md are the output of these commands.
func TestPlanDocs(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{objects: func(w *planEnv) {
		w.addNode("default-kn52t", "default", "pve1", "1500m")
		w.addNode("default-x8m4c", "default", "pve2", "1500m")
	}})
	page, err := os.ReadFile("../../docs/plan.md")
	s.Expect(err).NotTo(HaveOccurred())
	for _, command := range []string{
		"-f web.yaml", "-f many.yaml", "-f many.yaml --new-node-setting-file settings.json", "--lose-host home/pve1", "-f web.yaml --lose-host home/pve1", "-f class.yaml",
	} {
		out, err := s.run(command)
		s.Expect(err).NotTo(HaveOccurred())
		if example := "```console\n$ kubectl proxmox plan " + command + "\n" + out + "```\n"; !strings.Contains(string(page), example) {
			t.Errorf("docs/plan.md does not contain this example:\n%s", example)
		}
	}
	s.Expect(os.ReadFile(filepath.Join(s.dir, "saved.json"))).NotTo(Or(ContainSubstring("confidential"), ContainSubstring(pvesim.DefaultTokenSecret)))
}

func TestPlanLive(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(testenv.NewWithAPIServer(t, planOptions(nil)...))
	w.Expect(runIn(w.Env, "plan", "-f", write(t, w.dir, "web.yaml", fmt.Sprintf(webDeployment, 3)))).To(HavePrefix("VMs to create: 3\n"))
	// A manifest without the defaults of the API server changes nothing.
	w.addClaim("a", w.class.Name, "pve1")
	same := w.changedClass(func(c *v1alpha1.ProxmoxNodeClass) { c.Spec = testenv.NewNodeClass("", w.Named("ubuntu"), w.Name).Spec })
	w.Expect(runIn(w.Env, "plan", "-f", w.write("same.yaml", same))).To(MatchRegexp(
		"^VMs to create: 0\nVMs to delete: 0\nPods that do not fit: 0\nPrice per hour: .*\n$"), "there is no note")
	claims := &karpv1.NodeClaimList{}
	w.Expect(w.Kube.List(t.Context(), claims)).To(Succeed())
	w.Expect(claims.Items).To(HaveLen(1), "nothing is created")
}

const rejectedPod = `
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: shop}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: %d}}}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: karpenter.sh/nodepool, operator: DoesNotExist}]}]
`

// TestPlanSingle makes one plan of each saved inventory.
func TestPlanSingle(t *testing.T) {
	t.Parallel()
	on := func(host string) types.GomegaMatcher { return HaveEach(HaveField("Host", host)) }
	nothing := And(HaveField("Create", BeEmpty()), HaveField("Delete", BeEmpty()))
	for name, test := range map[string]struct {
		setup   planSetup
		command string
		want    types.GomegaMatcher
	}{
		// No pods are on the VM, and pending pods are planned.
		"lost_VM_without_node": {
			planSetup{objects: func(w *planEnv) { w.addClaim("a", "default", "pve1") }}, "-f web.yaml --lose-host home/pve1",
			And(HaveField("Delete", HaveLen(1)), HaveField("Create", And(HaveLen(3), on("pve2"))), HaveField("Unschedulable", BeEmpty())),
		},
		// No host can pin VMs. The controller's node-policy applies to NodeClasses without spec.cpu.
		"node_policy": {planSetup{args: []string{"--node-policy=static"}}, "-f web.yaml", And(nothing, HaveField("Unschedulable", HaveLen(3)))},
		// It replaces the settings of the controller, as in other commands.
		"node_setting_file": {planSetup{save: []string{"--node-setting-file", "settings.json"}}, "-f many.yaml", HaveField("Unschedulable", BeEmpty())},
		// The plan for other NodePools is not affected.
		"missing_class": {planSetup{objects: func(w *planEnv) {
			w.addNode("a", "default", "pve1", "1")
			w.Expect(w.Kube.Delete(w.T.Context(), w.class)).To(Succeed())
		}}, "-f rejected.yaml", nothing},
		// Core does not schedule pods that avoid Karpenter's Nodes. They fit on others.
		"pods_that_avoid_Karpenter": {
			planSetup{objects: func(w *planEnv) {
				w.createNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unmanaged", Labels: map[string]string{corev1.LabelHostname: "unmanaged"}}},
					corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10")})
			}}, "-f rejected.yaml",
			And(nothing, HaveField("Unschedulable", HaveExactElements(
				whatif.UnschedulablePod{Pod: "shop/large", Reason: "no existing node fits, and the pod avoids nodes of Karpenter"}))),
		},
		// The Nodes of the classes that use the template are replaced.
		"changed_template": {
			planSetup{scenario: withSharedTemplate, objects: func(w *planEnv) {
				w.useUnmanaged("other", v1alpha1.ProxmoxUnmanagedTemplateSpec{VMID: 9000})
				claim := w.addNode("a", "default", "pve1", "500m")
				claim.Status.Conditions = nil
				w.Expect(w.Launch(claim, w.class)).To(Succeed()) // before its Node joins
			}}, "-f template.yaml",
			And(
				HaveField("Delete", ConsistOf(And(HaveField("NodeClaim", "a"), HaveField("Reason", string(v1alpha1.DriftImage))))),
				HaveField("Create", ConsistOf(HaveField("Pods", ConsistOf("shop/a")))),
			),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := savePlan(t, test.setup)
			write(t, s.dir, "rejected.yaml", fmt.Sprintf(rejectedPod+"---"+rejectedPod, "small", 1, "large", 3))
			write(t, s.dir, "template.yaml",
				`{apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1, kind: ProxmoxUnmanagedTemplate, metadata: {name: other}, spec: {vmid: 9500}}`)
			s.Expect(s.plan(test.command)).To(test.want)
		})
	}
}

// A host that was shut down to save energy is woken for VMs, unless it is lost.
func TestPlanSleepingHost(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{objects: func(w *planEnv) { shutDownHost(w.Env, "pve2") }})
	onSleeping := ContainElement(HaveField("Host", "pve2"))
	s.Expect(s.plan("-f many.yaml").Create).To(onSleeping)
	s.Expect(s.plan("-f many.yaml --lose-host home/pve2").Create).To(And(Not(BeEmpty()), Not(onSleeping)))
}

const batchObjects = `
apiVersion: batch/v1
kind: Job
metadata: {name: report, namespace: shop}
spec:
  parallelism: 3
  completions: 2
  template: {spec: {restartPolicy: Never, containers: [{name: report, image: report, resources: {requests: {cpu: 1500m}}}]}}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: nightly, namespace: shop}
---
apiVersion: karpenter.proxmox.sinextra.dev/v1alpha1
kind: ProxmoxTemplate
metadata: {name: debian}
spec: {sourceImage: {url: https://example.com/debian.qcow2, imageName: debian.qcow2}, storageIDs: [local], network: [{bridge: vmbr0}]}
---
apiVersion: karpenter.sh/v1alpha1
kind: NodeOverlay
metadata: {name: price}
spec:
  requirements: [{key: kubernetes.io/os, operator: In, values: [linux]}]
  price: "2"
`

// Jobs are planned. A note names each object whose effect is not planned.
func TestPlanOtherKinds(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{args: []string{"--feature-gates=NodeOverlay=true"}})
	write(t, s.dir, "batch.yaml", batchObjects)
	plan := s.plan("-f batch.yaml")
	s.Expect(plan.Create).To(And(HaveLen(2), HaveEach(HaveField("PricePerHour", 2.0))), "the price of the overlay")
	s.Expect(plan.Notes).To(Equal([]string{
		"the pods of CronJob shop/nightly are not planned: pass a Deployment, StatefulSet, ReplicaSet, Job or pod",
		"the change of ProxmoxTemplate debian is not planned: VMs are planned with the templates that exist now",
	}))
}

func TestPlanInvalid(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{})
	write(t, s.dir, "unmatched.yaml", strings.Replace(fmt.Sprintf(webDeployment, 1), "labels: {app: web}", "labels: {app: db}", 1))
	old := write(t, s.dir, "old.json", `{"format": 0}`)
	for want, args := range map[string]string{
		"host home/pve9 does not exist; hosts: home/pve1, home/pve2":                                                  "--lose-host home/pve9",
		`--lose-host: found host "pve1", want REGION/HOST, for example home/pve1`:                                     "--lose-host pve1",
		`Deployment web: spec.template.metadata.labels: Invalid value: {"app":"db"}: must match spec.selector`:        "-f unmatched.yaml",
		"reading the inventory " + old + ": found format 0, want 2: save it again with this version of the plugin":    "--inventory old.json",
		"if any flags in the group [save inventory] are set none of the others can be; [inventory save] were all set": "--save saved.json",
		"reading the host settings: open " + filepath.Join(s.dir, "absent.json") + ": no such file or directory":      "--new-node-setting-file absent.json",
	} {
		s.Expect(errorOf(s.run(args))).To(MatchError(want))
	}
}

// As with kubectl apply, an object without a namespace is in that of the context.
func TestPlanNamespace(t *testing.T) {
	t.Parallel()
	s := savePlan(t, planSetup{})
	write(t, s.dir, "pod.yaml", "{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]}}")
	write(t, s.dir, "kubeconfig.yaml", "{current-context: shop, contexts: [{name: shop, context: {namespace: shop}}, {name: none, context: {}}]}")
	for args, want := range map[string]string{"": "shop/web", " --context none": "default/web"} {
		s.Expect(s.plan("-f pod.yaml --kubeconfig kubeconfig.yaml" + args).Create).To(ConsistOf(HaveField("Pods", ConsistOf(want))))
	}
}
