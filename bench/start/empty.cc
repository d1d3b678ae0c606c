// A program that does nothing, linked statically: what starting and ending a program costs at least.
int main() { return 0; }
