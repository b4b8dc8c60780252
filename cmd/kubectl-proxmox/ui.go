// Copyright The karpenter-provider-proxmox Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// webPagePortName is the name of the web page's port in the controller's pod.
const webPagePortName = "webpage"

// uiOptions are the flags of ui.
type uiOptions struct {
	port           int
	noBrowser      bool
	serviceAccount string
	controller     string
}

func newUI(cluster *kubeCluster) *cobra.Command {
	options := uiOptions{}
	command := &cobra.Command{
		Use:   "ui",
		Short: "Open the controller's web page in a browser",
		Long: `Open the controller's web page in a browser.

The command forwards a local port to a pod of the controller and adds your token to
requests. The page must be enabled with the chart value settings.webPagePort, and you need
the permissions to create pods/portforward and to get the non-resource URL /proxmox.

The controller verifies tokens. If your kubeconfig has a client certificate and no token,
use --service-account: the command then requests a token of that service account.`,
		Example: `  kubectl proxmox ui
  kubectl proxmox ui --service-account kube-system/karpenter-viewer --no-browser`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			config, err := cluster.config()
			if err != nil {
				return err
			}
			kube, _, err := cluster.connect()
			if err != nil {
				return err
			}
			return options.run(command.Context(), config, kube, command.OutOrStdout())
		},
	}
	flags := command.Flags()
	flags.IntVar(&options.port, "port", 0, "local port (default a free one)")
	flags.BoolVar(&options.noBrowser, "no-browser", false, "only print the address")
	flags.StringVar(&options.serviceAccount, "service-account", "", "service account, as NAMESPACE/NAME, whose token is used instead of yours")
	flags.StringVar(&options.controller, "controller", "", "NAMESPACE/NAME of the controller's Deployment (default the only one)")
	return command
}

func (o uiOptions) run(ctx context.Context, config *rest.Config, kube client.Client, out io.Writer) error {
	pod, port, err := findWebPage(ctx, kube, o.controller)
	if err != nil {
		return err
	}
	user, err := o.user(ctx, config)
	if err != nil {
		return err
	}
	target, lost, stop, err := forward(ctx, config, pod, port)
	if err != nil {
		return err
	}
	defer stop()
	proxy, err := newUIProxy(target, user)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", o.port))
	if err != nil {
		return fmt.Errorf("listening on the local port: %w", err)
	}
	address := proxy.address(listener.Addr().String())
	fmt.Fprintf(out, "The page of pod %s/%s is at %s\nPress Ctrl-C to stop.\n", pod.Namespace, pod.Name, address)
	if !o.noBrowser {
		if err := openBrowser(ctx, address); err != nil {
			fmt.Fprintf(out, "Open the address in a browser: %v\n", err)
		}
	}
	server := &http.Server{Handler: proxy, ReadHeaderTimeout: 10 * time.Second}
	defer func() { _ = server.Close() }()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return fmt.Errorf("serving the page: %w", err)
	case err := <-lost:
		return fmt.Errorf("the port-forward to pod %s/%s ended: %w; run the command again", pod.Namespace, pod.Name, err)
	}
}

// findWebPage returns a running pod of the controller that serves the page, and the port.
func findWebPage(ctx context.Context, kube client.Client, name string) (*corev1.Pod, int32, error) {
	controller, err := findController(ctx, kube, name)
	if err != nil {
		return nil, 0, err
	}
	n := slices.IndexFunc(controller.container.Ports, func(p corev1.ContainerPort) bool { return p.Name == webPagePortName })
	if n < 0 {
		return nil, 0, fmt.Errorf("the controller in Deployment %s does not serve the page: set the chart value settings.webPagePort, for example to 8443", controller)
	}
	deployment, pods := controller.deployment, &corev1.PodList{}
	if err := kube.List(ctx, pods, client.InNamespace(deployment.Namespace), client.MatchingLabels(deployment.Spec.Selector.MatchLabels)); err != nil {
		return nil, 0, fmt.Errorf("listing the pods of Deployment %s: %w", controller, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp.IsZero() {
			return pod, controller.container.Ports[n].ContainerPort, nil
		}
	}
	return nil, 0, fmt.Errorf("no pod of Deployment %s is running", controller)
}

// user returns the configuration whose token is sent to the page.
func (o uiOptions) user(ctx context.Context, config *rest.Config) (*rest.Config, error) {
	if o.serviceAccount == "" {
		if config.BearerToken == "" && config.BearerTokenFile == "" && config.ExecProvider == nil && config.AuthProvider == nil {
			return nil, errors.New("your kubeconfig has no token, and the page does not accept client certificates: use --service-account NAMESPACE/NAME")
		}
		return config, nil
	}
	namespace, name, ok := strings.Cut(o.serviceAccount, "/")
	if !ok || namespace == "" || name == "" {
		return nil, fmt.Errorf("--service-account: found %q, want NAMESPACE/NAME", o.serviceAccount)
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("creating the Kubernetes client: %w", err)
	}
	request, err := clients.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("requesting a token of service account %s: %w", o.serviceAccount, err)
	}
	user := rest.AnonymousClientConfig(config)
	user.BearerToken = request.Status.Token
	return user, nil
}

// forward forwards a free local port to a port of a pod. It returns the local address, and
// sends to lost when the connection to the pod is lost.
func forward(ctx context.Context, config *rest.Config, pod *corev1.Pod, port int32) (address string, lost <-chan error, stop func(), err error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", nil, nil, fmt.Errorf("creating the Kubernetes client: %w", err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return "", nil, nil, fmt.Errorf("creating the port-forward: %w", err)
	}
	url := clients.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	done, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		[]string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, done, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, nil, fmt.Errorf("creating the port-forward: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ctx.Done():
		close(done)
		return "", nil, nil, ctx.Err()
	case err := <-ended:
		return "", nil, nil, fmt.Errorf("forwarding a port to pod %s/%s: %w", pod.Namespace, pod.Name, err)
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		close(done)
		return "", nil, nil, fmt.Errorf("reading the local port of the port-forward: %w", err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local), ended, func() { close(done) }, nil
}

// openBrowser opens an address in the user's browser.
func openBrowser(ctx context.Context, address string) error {
	command := []string{"xdg-open", address}
	switch runtime.GOOS {
	case "darwin":
		command = []string{"open", address}
	case "windows":
		command = []string{"rundll32", "url.dll,FileProtocolHandler", address}
	}
	return exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...).Start()
}
