// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/karpenter-proxmox/karpenter-provider-proxmox/internal/operator"
)

// controllerDeployment is the Deployment of the controller.
type controllerDeployment struct {
	kube       client.Reader
	deployment *appsv1.Deployment
	container  corev1.Container
}

// findController returns the only Deployment with a container that has the flag
// --cloud-config; the one with the name NAMESPACE/NAME if that is not empty. The cloud
// controller manager and the CSI driver for Proxmox have the flag too, and others that the
// controller does not have.
func findController(ctx context.Context, kube client.Reader, name string) (*controllerDeployment, error) {
	list := &appsv1.DeploymentList{}
	if err := kube.List(ctx, list); err != nil {
		return nil, fmt.Errorf("listing Deployments to find the controller: %w", err)
	}
	var found []*controllerDeployment
	for i := range list.Items {
		deployment := &list.Items[i]
		n := slices.IndexFunc(deployment.Spec.Template.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--cloud-config") })
		})
		if key := client.ObjectKeyFromObject(deployment).String(); n >= 0 && (name == "" || name == key) {
			found = append(found, &controllerDeployment{kube, deployment, deployment.Spec.Template.Spec.Containers[n]})
		}
	}
	isController := func(c *controllerDeployment) bool { return c.deployed(ctx).HasOnlyKnownFlags() }
	if slices.ContainsFunc(found, isController) {
		found = slices.DeleteFunc(found, func(c *controllerDeployment) bool { return !isController(c) })
	}
	var names []string
	for _, controller := range found {
		names = append(names, controller.String())
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("several Deployments have a container with the flag --cloud-config: %s; select one with --controller", strings.Join(names, ", "))
	case name != "":
		return nil, fmt.Errorf("--controller is %q: there is no such Deployment with a container that has the flag --cloud-config", name)
	}
	return nil, errors.New("no Deployment has a container with the flag --cloud-config: is the controller installed?")
}

func (c *controllerDeployment) String() string {
	return client.ObjectKeyFromObject(c.deployment).String()
}

// deployed returns arguments, environment and files of the controller.
func (c *controllerDeployment) deployed(ctx context.Context) operator.Deployed {
	env := map[string]string{}
	for _, variable := range c.container.Env {
		env[variable.Name] = variable.Value
	}
	return operator.Deployed{Args: c.container.Args, Env: env, ReadFile: func(file string) ([]byte, error) { return c.readFile(ctx, file) }}
}

// readFile returns a file of the controller from the Secret or ConfigMap that is mounted
// there.
func (c *controllerDeployment) readFile(ctx context.Context, file string) ([]byte, error) {
	for _, mount := range c.container.VolumeMounts {
		key, below := strings.CutPrefix(file, strings.TrimSuffix(mount.MountPath, "/")+"/")
		if file == mount.MountPath && mount.SubPath != "" {
			key, below = mount.SubPath, true
		}
		n := slices.IndexFunc(c.deployment.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == mount.Name })
		if !below || n < 0 {
			continue
		}
		for _, source := range sourcesOf(c.deployment.Spec.Template.Spec.Volumes[n]) {
			content, ok, err := c.readSource(ctx, source, key)
			if err != nil || ok {
				return content, err
			}
		}
	}
	return nil, fmt.Errorf("%s is in no Secret or ConfigMap that Deployment %s mounts", path.Clean(file), c)
}

// fileSource is a Secret or ConfigMap with files.
type fileSource struct {
	secret, configMap string
	items             []corev1.KeyToPath
}

// sourcesOf returns the sources of a volume; none if it contains other files.
func sourcesOf(volume corev1.Volume) []fileSource {
	switch {
	case volume.Secret != nil:
		return []fileSource{{secret: volume.Secret.SecretName, items: volume.Secret.Items}}
	case volume.ConfigMap != nil:
		return []fileSource{{configMap: volume.ConfigMap.Name, items: volume.ConfigMap.Items}}
	case volume.Projected == nil:
		return nil
	}
	var out []fileSource
	for _, source := range volume.Projected.Sources {
		switch {
		case source.Secret != nil:
			out = append(out, fileSource{secret: source.Secret.Name, items: source.Secret.Items})
		case source.ConfigMap != nil:
			out = append(out, fileSource{configMap: source.ConfigMap.Name, items: source.ConfigMap.Items})
		}
	}
	return out
}

// readSource returns a file of a source. It returns false if the source does not have it.
func (c *controllerDeployment) readSource(ctx context.Context, source fileSource, file string) ([]byte, bool, error) {
	if len(source.items) > 0 {
		n := slices.IndexFunc(source.items, func(item corev1.KeyToPath) bool { return item.Path == file })
		if n < 0 {
			return nil, false, nil
		}
		file = source.items[n].Key
	}
	if source.configMap != "" {
		configMap := &corev1.ConfigMap{}
		if err := c.kube.Get(ctx, client.ObjectKey{Namespace: c.deployment.Namespace, Name: source.configMap}, configMap); err != nil {
			return nil, false, fmt.Errorf("reading ConfigMap %s of Deployment %s: %w", source.configMap, c, err)
		}
		content, ok := configMap.Data[file]
		return []byte(content), ok, nil
	}
	secret := &corev1.Secret{}
	if err := c.kube.Get(ctx, client.ObjectKey{Namespace: c.deployment.Namespace, Name: source.secret}, secret); err != nil {
		return nil, false, fmt.Errorf("reading Secret %s of Deployment %s: %w", source.secret, c, err)
	}
	content, ok := secret.Data[file]
	return content, ok, nil
}
