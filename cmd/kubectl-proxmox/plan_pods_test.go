// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/whatif"
)

const rejectedPods = `
apiVersion: v1
kind: Pod
metadata: {name: database, namespace: shop}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: absent}}]
---
apiVersion: v1
kind: Pod
metadata: {name: small, namespace: shop}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: karpenter.sh/nodepool, operator: DoesNotExist}]}]
---
apiVersion: v1
kind: Pod
metadata: {name: large, namespace: shop}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: 3}}}]
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms: [{matchExpressions: [{key: karpenter.sh/nodepool, operator: DoesNotExist}]}]
`

// Core does not schedule some pods. Those that avoid Karpenter's Nodes fit on others.
func TestPlanRejectedPod(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.Named("unmanaged"), Labels: map[string]string{corev1.LabelHostname: w.Named("unmanaged")}}}
	w.createNode(node, corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("10")})
	write(t, w.dir, "rejected.yaml", rejectedPods)
	plan := w.decode(w.plan("-f rejected.yaml -o json"), nil)
	w.Expect(plan.Create).To(BeEmpty())
	w.Expect(plan.Unschedulable).To(HaveExactElements(
		And(HaveField("Pod", "shop/database"), HaveField("Reason", And(HavePrefix("Karpenter ignores the pod: "), ContainSubstring(`"absent" not found`)))),
		whatif.UnschedulablePod{Pod: "shop/large", Reason: "no existing node fits, and the pod avoids nodes of Karpenter"},
	))
}

// As with kubectl apply, an object without a namespace is in that of the context.
func TestPlanNamespace(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	write(t, w.dir, "pod.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, resources: {requests: {cpu: 1}}}]
`)
	config := clientcmdapi.NewConfig()
	config.Contexts["shop"], config.Contexts["none"] = &clientcmdapi.Context{Namespace: "shop"}, &clientcmdapi.Context{}
	config.CurrentContext = "shop"
	w.Expect(clientcmd.WriteToFile(*config, filepath.Join(w.dir, "kubeconfig.yaml"))).To(Succeed())
	for args, want := range map[string]string{"": "shop/web", " --context none": "default/web"} {
		plan := w.decode(w.plan("-f pod.yaml -o json --kubeconfig kubeconfig.yaml"+args), nil)
		w.Expect(plan.Create).To(ConsistOf(HaveField("Pods", ConsistOf(want))))
	}
}

// A NodePool without its NodeClass gets no VMs. The plan for the others is not affected.
func TestPlanMissingNodeClass(t *testing.T) {
	t.Parallel()
	w := newPlanEnv(t)
	w.addNode("a", "pve1", "1")
	w.Expect(w.Kube.Delete(t.Context(), w.class)).To(Succeed())
	write(t, w.dir, "rejected.yaml", rejectedPods)
	plan := w.decode(w.plan("-f rejected.yaml -o json"), nil)
	w.Expect(plan.Create).To(BeEmpty())
	w.Expect(plan.Delete).To(BeEmpty())
}
