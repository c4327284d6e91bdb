// A client-go program with today's defaults: typed creates (protobuf bodies), an informer
// (watch-list), and a watch that sees an update and a delete. It prints one line per step.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[1])
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	namespace := os.Args[2]
	maps := client.CoreV1().ConfigMaps(namespace)
	for _, name := range []string{"one", "two"} {
		body := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "v"}}
		if _, err := maps.Create(ctx, body, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
	}
	fmt.Println("created")

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().ConfigMaps().Informer()
	seen := make(chan string, 100)
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { seen <- "added " + obj.(*corev1.ConfigMap).Name },
		UpdateFunc: func(_, obj any) {
			found := obj.(*corev1.ConfigMap)
			seen <- "updated " + found.Name + " " + found.Data["k"]
		},
		DeleteFunc: func(obj any) { seen <- "deleted " + obj.(*corev1.ConfigMap).Name },
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("the informer did not sync")
	}
	fmt.Println("synced")

	one, err := maps.Get(ctx, "one", metav1.GetOptions{})
	if err != nil {
		return err
	}
	one.Data["k"] = "changed"
	if _, err := maps.Update(ctx, one, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	uid := one.UID
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if err := maps.Delete(ctx, "one", options); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the informer did not see the deletion")
		case line := <-seen:
			if line == "added kube-root-ca.crt" {
				continue
			}
			fmt.Println(line)
			if line == "deleted one" {
				return nil
			}
		}
	}
}
