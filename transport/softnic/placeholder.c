/* keeps the library from being empty */ typedef int placeholder;
