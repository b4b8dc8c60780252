// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

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
